/* The memory that two ranks of a host share: two rings of bytes, one for each direction, and their
 * positions. It is untrusted memory, because the other side may write anything there at any time.
 * So our own positions are kept here and only published there. The other's is read once a call and
 * checked. Bytes are copied out before any code looks at them.
 *
 * A rank that is about to sleep announces it (`sleeps`), then looks once more. After that, a rank
 * that writes or takes bytes wakes it by a byte through their socket. A rank sleeps only on that.
 * No wake-up is lost, as all of these are sequentially consistent. While no rank sleeps nothing
 * calls the system. */

#if DTI_TCP

#define DTI_SHM_RING (256u << 10) /* a power of two; both fit into a core's second cache */
#define DTI_SHM_BYTES (sizeof(dti_shm_head) + 2 * (size_t)DTI_SHM_RING)
/* This number of bytes is copied before the other side is notified. So it begins meanwhile, and
 * checksums find them in the first cache. */
#define DTI_SHM_PIECE (16u << 10)
/* From this size on a payload is read directly from the sender's memory, if possible. That saves a
 * copy for some system calls. */
#define DTI_SHM_LEND (128u << 10)
#define DTI_SHM_BORROW ((size_t)128 << 10) /* at once, so that checksums find it in a cache */
#define DTI_SHM_REWIND (8u << 10)
#define DTI_SHM_NOTE 8u /* an address, in the place of such a payload or before it */
#define DTI_SHM_FOR_BYTES 1u
#define DTI_SHM_FOR_ROOM 2u

typedef struct dti_shm_way { /* positions: bytes since the beginning, modulo 2^32 */
    /* Low half: the bytes written; high: the position that is now at the ring's first byte. */
    _Alignas(64) _Atomic uint64_t written;
    _Atomic uint32_t ended; /* nothing more will be written */
    _Alignas(64) _Atomic uint32_t taken;
} dti_shm_way;

typedef struct dti_shm_side {
    _Alignas(64) _Atomic uint32_t sleeps; /* DTI_SHM_FOR_... */
    _Atomic uint32_t reads;               /* it may read the memory of the other side's process */
    _Alignas(64) _Atomic uint64_t processors[DTI_MAX_THREADS / 64]; /* that it may run on */
} dti_shm_side;

/* Ring 0 follows, then ring 1. Side 0 dialled, and writes ring 0. */
typedef struct dti_shm_head {
    dti_shm_way way[2];
    dti_shm_side side[2];
    uint8_t unused[4096 - 10 * 64];
} dti_shm_head;
_Static_assert(sizeof(dti_shm_head) == 4096, "the layout of docs/protocol-messages.md");

typedef struct dti_shm { /* our side */
    dti_shm_head *head;  /* NULL: none */
    uint32_t side, written, taken;
    uint32_t first[2]; /* the position at the first byte of our ring, and of the other's */
    uint32_t look;     /* when to look whether our ring can begin again */
    uint32_t told;     /* of `taken`, the part that the other side knows */
    uint32_t freed;    /* the other's position when we last looked, which we do when we lack room */
} dti_shm;

_Static_assert(sizeof(dti_shm_way) == 128 && sizeof(dti_shm_side) == 192, "so is this");

/* Maps the memory; false: see errno. */
static bool dti_shm_open(dti_shm *m, int descriptor, uint32_t side) {
    *m = (dti_shm){.head = dti_memfd_map(descriptor, DTI_SHM_BYTES), .side = side};
    return m->head != NULL;
}

static void dti_shm_close(dti_shm *m) {
    if (m->head)
        dti_memfd_unmap(m->head, DTI_SHM_BYTES);
    m->head = NULL;
}

static dti_shm_way *dti_shm_out(const dti_shm *m) {
    return &m->head->way[m->side];
}

static dti_shm_way *dti_shm_in(const dti_shm *m) {
    return &m->head->way[1 - m->side];
}

static uint8_t *dti_shm_ring(const dti_shm *m, uint32_t side) {
    return (uint8_t *)(m->head + 1) + (size_t)side * DTI_SHM_RING;
}

/* Bytes that may be written, or taken; -1: the other side's position is invalid. */
static int64_t dti_shm_room(dti_shm *m) {
    const uint32_t freed = atomic_load(&dti_shm_out(m)->taken), used = m->written - freed;
    if (used > DTI_SHM_RING)
        return -1;
    m->freed = freed;
    return (int64_t)(DTI_SHM_RING - used);
}

/* Likewise, but perhaps fewer bytes than available, if they are enough. It avoids reading the line
 * that the other side writes. */
static int64_t dti_shm_room_for(dti_shm *m, size_t bytes) {
    uint32_t room = DTI_SHM_RING - (m->written - m->freed);
    return room < bytes ? dti_shm_room(m) : (int64_t)room;
}

static int64_t dti_shm_filled(dti_shm *m) {
    const uint64_t word = atomic_load(&dti_shm_in(m)->written);
    const uint32_t there = (uint32_t)word - m->taken;
    m->first[1] = (uint32_t)(word >> 32);
    return there > DTI_SHM_RING ? -1 : (int64_t)there;
}

static void dti_shm_publish(const dti_shm *m) {
    atomic_store(&dti_shm_out(m)->written, (uint64_t)m->first[0] << 32 | m->written);
}

/* An empty ring begins again at its first byte, so short messages go through memory that both
 * sides' caches have. Looking costs the other's line, so it is rare. */
static void dti_shm_rewind(dti_shm *m) {
    if (m->written - m->look >= UINT32_MAX / 2)
        return;
    m->look = m->written + DTI_SHM_REWIND;
    if (dti_shm_room(m) == DTI_SHM_RING)
        m->first[0] = m->written;
}

static void dti_shm_copy(uint8_t *ring, uint32_t at, uint8_t *data, size_t bytes, bool in) {
    at &= DTI_SHM_RING - 1;
    size_t first = DTI_MIN(bytes, (size_t)(DTI_SHM_RING - at));
    memcpy(in ? ring + at : data, in ? data : ring + at, first);
    if (first < bytes)
        memcpy(in ? ring : data + first, in ? data + first : ring, bytes - first);
}

/* The number of bytes written, at most those of all parts; -1 as above. */
static int64_t dti_shm_write(dti_shm *m, const dti_socket_part *parts, int count) {
    dti_shm_rewind(m);
    const int64_t room = dti_shm_room_for(m, dti_parts_bytes(parts, count));
    uint32_t from = m->written;
    for (int i = 0; i < count && room > 0; i++) {
        size_t left = DTI_MIN((size_t)room - (m->written - from), parts[i].bytes);
        for (size_t at = 0, take; at < left; at += take) {
            take = DTI_MIN(left - at, (size_t)DTI_SHM_PIECE);
            dti_shm_copy(dti_shm_ring(m, m->side), m->written - m->first[0],
                         (uint8_t *)parts[i].data + at, take, true);
            m->written += (uint32_t)take;
            if (take == DTI_SHM_PIECE)
                dti_shm_publish(m);
        }
    }
    if (room < 0)
        return -1;
    if (m->written != from)
        dti_shm_publish(m);
    return m->written - from;
}

/* After reading: the room is the other side's. */
static void dti_shm_tell(dti_shm *m) {
    if (m->told != m->taken)
        atomic_store(&dti_shm_in(m)->taken, m->taken);
    m->told = m->taken;
}

/* Takes bytes, and returns their number. The other side is notified piece by piece. */
static int64_t dti_shm_read(dti_shm *m, const dti_socket_part *parts, int count) {
    const int64_t there = dti_shm_filled(m);
    uint32_t from = m->taken;
    for (int i = 0; i < count && there > 0; i++) {
        size_t left = (size_t)there - (m->taken - from), take = DTI_MIN(parts[i].bytes, left);
        dti_shm_copy(dti_shm_ring(m, 1 - m->side), m->taken - m->first[1], parts[i].data, take,
                     false);
        m->taken += (uint32_t)take;
    }
    if (there < 0)
        return -1;
    if (m->taken - m->told >= DTI_SHM_PIECE)
        dti_shm_tell(m);
    return m->taken - from;
}

/* The next bytes, which stay there until they are passed. 1: they are here; 0; -1 as above. */
static int dti_shm_peek(dti_shm *m, uint8_t *to, size_t bytes) {
    const int64_t there = dti_shm_filled(m);
    if (there < (int64_t)bytes)
        return there < 0 ? -1 : 0;
    dti_shm_copy(dti_shm_ring(m, 1 - m->side), m->taken - m->first[1], to, bytes, false);
    return 1;
}

static void dti_shm_pass(dti_shm *m, size_t bytes) {
    m->taken += (uint32_t)bytes;
    dti_shm_tell(m);
}

/* Whether the other side has taken all before this position of ours; it may be wrong, see room. */
static bool dti_shm_has_taken(dti_shm *m, uint32_t position) {
    return dti_shm_room(m) >= 0 && m->written - m->freed <= m->written - position;
}

/* Says which processors this side may run on; adds those that the other side has said. */
static void dti_shm_tell_processors(const dti_shm *m, const dti_cpu_set *set) {
    for (size_t i = 0; i < DTI_COUNT(set->bits); i++)
        atomic_store(&m->head->side[m->side].processors[i], set->bits[i]);
}

static void dti_shm_add_processors(const dti_shm *m, dti_cpu_set *set) {
    for (size_t i = 0; i < DTI_COUNT(set->bits); i++)
        set->bits[i] |= atomic_load(&m->head->side[1 - m->side].processors[i]);
}

static void dti_shm_end(const dti_shm *m) {
    atomic_store(&dti_shm_out(m)->ended, 1u);
}

static bool dti_shm_is_ended(const dti_shm *m) {
    return atomic_load(&dti_shm_in(m)->ended) != 0;
}

/* Before a sleep: the events to ring for; 0 afterwards. */
static void dti_shm_sleep(const dti_shm *m, uint32_t what) {
    atomic_store(&m->head->side[m->side].sleeps, what);
}

static void dti_shm_sleep_also(const dti_shm *m, uint32_t what) {
    atomic_fetch_or(&m->head->side[m->side].sleeps, what);
}

/* Whether the other side is to be rung for this; once for each of its sleeps. */
static bool dti_shm_must_ring(const dti_shm *m, uint32_t what) {
    _Atomic uint32_t *sleeps = &m->head->side[1 - m->side].sleeps;
    return atomic_load(sleeps) & what && atomic_exchange(sleeps, 0u);
}

#endif
