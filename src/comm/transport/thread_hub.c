/* The shared state of ranks that are threads of one process. A hub has teams (all ranks, or a
 * group), a team has slots, and a slot has one operation: the buffers of its ranks. All are under
 * the hub's one lock; only jobs are claimed without it (thread_job.c).
 *
 * A slot goes from GATHERING (posts are missing) to READY (jobs may be claimed) to DONE. From the
 * first two it may go to ENDED with the hub. The end of one group ends all, because their ranks
 * depend on each other. `workers` counts the threads that use a slot's buffers without the lock. A
 * rank's handle ends when its slot is DONE, or ENDED without workers. So no thread reads a buffer
 * after its handle has ended. Nothing here knows what an operation does. */

typedef enum dti_slot_state {
    DTI_SLOT_FREE,
    DTI_SLOT_GATHERING,
    DTI_SLOT_READY,
    DTI_SLOT_DONE,
    DTI_SLOT_ENDED
} dti_slot_state;

typedef enum dti_post_state { DTI_POST_NONE, DTI_POST_BORROWED, DTI_POST_ENDED } dti_post_state;

typedef struct dti_post {
    const void *in;
    void *out;
    dti_post_state state;
    uint64_t at; /* when, if there is a limit */
} dti_post;

typedef struct dti_slot {
    uint64_t use;      /* how often it has been taken: the upper part of ids */
    uint64_t sequence; /* of the team's collectives, or of this pair's sends */
    dt_comm_op op;     /* of the first rank that posted; its buffers are not used */
    uint32_t first;    /* that rank */
    uint32_t from, to; /* send and recv; else both are the size */
    uint32_t needed, posted, ended;
    uint32_t workers;  /* threads doing jobs */
    uint32_t sleepers; /* on `changed` */
    dti_post *posts;   /* [size] */
    uint64_t jobs, job_elements;
    dti_cond changed; /* the phase, or the last worker has left */
    alignas(64) _Atomic uint64_t next_job;
    _Atomic int phase; /* a dti_slot_state; written under the lock, watched without it */
} dti_slot;

/* The ranks of one group. */
typedef struct dti_team {
    struct dti_team *next;
    uint32_t id, first_rank; /* disjoint groups may have the same id: the lowest world rank */
    uint32_t size;
    uint32_t open;    /* ranks that have it */
    bool *left;       /* [size] */
    dti_slot **slots; /* [slot_count], never fewer */
    size_t slot_count, slot_room;
} dti_team;

typedef struct dti_hub {
    dti_base base; /* of what the ranks share: silent, and used under the lock */
    dti_mutex lock;
    uint32_t open; /* ranks that have it */
    dti_team *teams;
    uint64_t op_ns;   /* a rank that has not posted for so long ends the hub; 0 = no limit */
    dt_result result; /* the cause of its end */
    char error[512];
} dti_hub;

/* A rank in a team. */
typedef struct dti_seat {
    dti_hub *hub;
    dti_team *team;
    uint64_t sequence;       /* collectives posted */
    uint64_t *sent, *heard;  /* [size] sends to and receives from each */
    dti_operand *operands;   /* scratch of a fold: one for each rank, or for each span */
    dti_operand *leaf_spans; /* their spans in tree mode, all ranks' */
    uint32_t *leaf_buffers;  /* [size] how many each has */
    size_t operand_room, leaf_room;
    uint32_t leaf_count, leaf_changes; /* of leaf_spans; the comm's leaf_changes then */
} dti_seat;

static bool dti_slot_needs(const dti_slot *slot, uint32_t rank) {
    return slot->needed != 2 || slot->from == slot->to || slot->from == rank || slot->to == rank;
}

/* ---- slots; from here on the lock is held, unless a comment says otherwise */

static void dti_slot_set(dti_slot *slot, dti_slot_state phase) {
    atomic_store(&slot->phase, (int)phase);
    if (slot->sleepers)
        dti_cond_broadcast(&slot->changed);
}

static dti_slot_state dti_slot_phase(const dti_slot *slot) {
    return (dti_slot_state)atomic_load(&slot->phase);
}

/* Until it is woken or the deadline (of dti_now_ns) is over; may return early. */
static void dti_slot_sleep(dti_hub *hub, dti_slot *slot, uint64_t deadline) {
    slot->sleepers++;
    if (deadline == UINT64_MAX) {
        dti_cond_wait(&slot->changed, &hub->lock);
    } else {
        dti_cond_wait_until(&slot->changed, &hub->lock, deadline);
    }
    slot->sleepers--;
}

static dti_slot *dti_slot_new(dti_hub *hub, dti_team *team) {
    if (team->slot_count >> 24 ||
        !DTI_RESERVE(&hub->base, team->slots, team->slot_room, team->slot_count + 1))
        return NULL;
    dti_slot *slot = dti_alloc(&hub->base, sizeof *slot);
    dti_post *posts = slot ? dti_alloc_array(&hub->base, team->size, sizeof *posts) : NULL;
    if (!posts) {
        dti_free(&hub->base, slot);
        return NULL;
    }
    slot->posts = posts;
    dti_cond_init(&slot->changed);
    team->slots[team->slot_count++] = slot;
    return slot;
}

/* The slot that rank `rank`'s next operation belongs to, new if it is the first there. An id is the
 * use and the index. NULL: no memory. */
static dti_slot *dti_slot_take(dti_hub *hub, dti_team *team, const dti_slot *key, size_t *index) {
    dti_slot *slot = NULL;
    for (size_t i = 0; i < team->slot_count; i++) {
        dti_slot *s = team->slots[i];
        bool busy = dti_slot_phase(s) != DTI_SLOT_FREE;
        if (busy && s->sequence == key->sequence && s->from == key->from && s->to == key->to) {
            *index = i;
            return s;
        }
        if (!busy && !slot)
            slot = s, *index = i;
    }
    if (!slot) {
        *index = team->slot_count;
        slot = dti_slot_new(hub, team);
    }
    if (!slot)
        return NULL;
    slot->use++;
    slot->sequence = key->sequence, slot->from = key->from, slot->to = key->to;
    slot->op = key->op, slot->first = key->first, slot->needed = key->needed;
    slot->posted = slot->ended = 0;
    memset(slot->posts, 0, team->size * sizeof *slot->posts);
    dti_slot_set(slot, DTI_SLOT_GATHERING);
    return slot;
}

static dti_slot *dti_slot_find(const dt_comm *comm, uint64_t id) {
    const dti_seat *seat = comm->state;
    size_t index = (size_t)(id & 0xFFFFFF);
    if (index >= seat->team->slot_count)
        return NULL;
    dti_slot *slot = seat->team->slots[index];
    bool mine = slot->use == id >> 24 && slot->posts[comm->rank].state == DTI_POST_BORROWED;
    return mine ? slot : NULL;
}

/* This rank's buffers are its own again. The last one frees the slot. */
static void dti_slot_end_post(dti_slot *slot, uint32_t rank) {
    slot->posts[rank].state = DTI_POST_ENDED;
    if (++slot->ended == slot->posted)
        dti_slot_set(slot, DTI_SLOT_FREE);
}

/* ---- teams */

static void dti_team_end(const dti_team *team) {
    for (size_t i = 0; i < team->slot_count; i++) {
        dti_slot *slot = team->slots[i];
        dti_slot_state phase = dti_slot_phase(slot);
        if (phase != DTI_SLOT_GATHERING && phase != DTI_SLOT_READY)
            continue;
        atomic_store(&slot->next_job, UINT64_MAX / 2); /* no more is claimed */
        dti_slot_set(slot, DTI_SLOT_ENDED);
    }
}

/* Ends all groups; the first cause stays. */
DTI_PRINTF(3, 4)
static void dti_hub_end(dti_hub *hub, dt_result result, const char *format, ...) {
    if (hub->result)
        return;
    hub->result = result;
    DTI_FORMAT(hub->error, format);
    for (const dti_team *team = hub->teams; team; team = team->next)
        dti_team_end(team);
}

/* " (operation 7 of group 2)": where in the program the ranks are. */
static const char *dti_slot_place(const dti_team *team, const dti_slot *slot, char text[64]) {
    char group[32] = "";
    if (team->id)
        snprintf(group, sizeof group, " of group %u", (unsigned)team->id);
    snprintf(text, 64, "operation %llu%s", (unsigned long long)slot->sequence, group);
    return text;
}

static dti_team *dti_team_new(dti_hub *hub, uint32_t id, uint32_t first_rank, uint32_t size) {
    dti_team *team = dti_alloc(&hub->base, sizeof *team);
    bool *left = team ? dti_alloc_array(&hub->base, size, sizeof *left) : NULL;
    if (!left) {
        dti_free(&hub->base, team);
        return NULL;
    }
    team->id = id, team->first_rank = first_rank, team->size = size, team->left = left;
    team->next = hub->teams;
    hub->teams = team;
    return team;
}

static void dti_team_free(dti_hub *hub, dti_team *team) {
    dti_team **at = &hub->teams;
    while (*at != team)
        at = &(*at)->next;
    *at = team->next;
    for (size_t i = 0; i < team->slot_count; i++) {
        dti_cond_destroy(&team->slots[i]->changed);
        DTI_FREE(&hub->base, team->slots[i]->posts, team->slots[i]);
    }
    DTI_FREE(&hub->base, team->slots, team->left, team);
}

/* A rank that this one needs and that has left, or the size. */
static uint32_t dti_team_missing(const dti_team *team, const dti_slot *slot) {
    for (uint32_t r = 0; r < team->size; r++)
        if (team->left[r] && dti_slot_needs(slot, r) && slot->posts[r].state == DTI_POST_NONE)
            return r;
    return team->size;
}

/* A slot waits for a rank that has left. */
static void dti_slot_end_left(dti_hub *hub, const dti_team *team, const dti_slot *slot,
                              uint32_t rank) {
    char text[DTI_COLL_TEXT], place[64];
    dti_hub_end(hub, DT_ERROR_PEER_LOST, "rank %u has left the group; %s needs it (%s)", rank,
                dti_coll_text(&slot->op, text), dti_slot_place(team, slot, place));
}
