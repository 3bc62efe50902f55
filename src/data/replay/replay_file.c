/* A replay buffer as a file. It has ten words, the items in the order of their places,
 * priorities^alpha, and a CRC32C of those. Words and priorities have the machine's byte order, and
 * so have the application's items. The checksum is compared before any value is used. */

typedef struct dti_replay_head {
    uint64_t magic, capacity, item_bytes;
    double alpha;
    uint64_t count, next, drawn;
    double largest;
    uint64_t none[2]; /* zeros */
} dti_replay_head;
_Static_assert(sizeof(dti_replay_head) == 10 * sizeof(uint64_t), "ten words");

#define DTI_REPLAY_FILE 0x31796C7065527464u /* "dtReply1" */
#define DTI_REPLAY_PIECE 65536u

/* After the head and without the sum, of `count` items. */
static uint64_t dti_replay_size(const dt_replay *r, uint64_t count) {
    return count * (r->desc.item_bytes + (r->tree ? sizeof *r->tree : 0));
}

DTI_PUBLIC(dt_replay_save, (const dt_replay *r, const char *path), r, DTI_OF(dt_replay),
           (r, path)) {
    const dti_replay_head head = {.magic = DTI_REPLAY_FILE,
                                  .capacity = r->desc.capacity,
                                  .item_bytes = r->desc.item_bytes,
                                  .alpha = r->desc.alpha,
                                  .count = r->count,
                                  .next = r->next,
                                  .drawn = r->drawn,
                                  .largest = r->largest};
    dti_writer *w;
    DTI_NEED(r->base, path);
    DTI_TRY(dti_writer_open(r->base, path,
                            sizeof head + dti_replay_size(r, r->count) + sizeof(uint32_t), &w));
    dti_writer_add(w, &head, sizeof head);
    dti_writer_add(w, r->items, (size_t)(r->count * r->desc.item_bytes));
    if (r->tree)
        dti_writer_add(w, r->tree + r->leaves, (size_t)r->count * sizeof *r->tree);
    const uint32_t sum = dti_writer_take_crc(w);
    dti_writer_add(w, &sum, sizeof sum);
    return dti_writer_close(w, true);
}

/* ---- loading */

static dt_result dti_replay_damaged(const dti_reader *f, const char *why) {
    return dti_fail(f->base, DT_ERROR_FORMAT, "%s: damaged or truncated: %s", f->path, why);
}

/* Checks whose file it is, before its numbers are used. */
static dt_result dti_replay_alike(const dt_replay *r, const dti_reader *f,
                                  const dti_replay_head *head) {
    if (head->magic != DTI_REPLAY_FILE)
        return dti_fail(f->base, DT_ERROR_FORMAT,
                        "%s: not a file of dt_replay_save, or of a machine with another byte order",
                        f->path);
    if (head->capacity != r->desc.capacity || head->item_bytes != r->desc.item_bytes ||
        !(head->alpha == r->desc.alpha))
        return dti_fail(f->base, DT_ERROR_INVALID,
                        "%s: its buffer is for %llu items of %llu bytes, alpha %g; this one for "
                        "%llu of %zu, alpha %g",
                        f->path, (unsigned long long)head->capacity,
                        (unsigned long long)head->item_bytes, head->alpha,
                        (unsigned long long)r->desc.capacity, r->desc.item_bytes, r->desc.alpha);
    return DT_OK;
}

static dt_result dti_replay_whole(const dt_replay *r, const dti_reader *f,
                                  const dti_replay_head *head) {
    if (head->count > r->desc.capacity ||
        (head->count < r->desc.capacity ? head->next != head->count
                                        : head->next >= r->desc.capacity) ||
        !(head->largest > 0.0 && dti_finite_f64(head->largest)) || head->none[0] || head->none[1])
        return dti_replay_damaged(f, "its header is inconsistent");
    if (f->size != sizeof *head + dti_replay_size(r, head->count) + sizeof(uint32_t))
        return dti_replay_damaged(f, "its size does not match its items");
    return DT_OK;
}

static dt_result dti_replay_sum(dti_reader *f) {
    uint32_t sum = 0, kept;
    uint64_t left = f->size - sizeof kept;
    dt_result result = dti_reader_seek(f, 0);
    uint8_t *piece = dti_alloc(f->base, DTI_REPLAY_PIECE);
    DTI_HAVE(piece);
    while (left && !result) {
        const size_t bytes = (size_t)DTI_MIN(left, (uint64_t)DTI_REPLAY_PIECE);
        result = dti_reader_take(f, piece, bytes);
        sum = result ? sum : dti_crc32c(sum, piece, bytes);
        left -= bytes;
    }
    dti_free(f->base, piece);
    if (!result)
        result = dti_reader_take(f, &kept, sizeof kept);
    return result || sum == kept ? result : dti_replay_damaged(f, "its checksum is wrong");
}

/* A priority that no call could have given is an error. */
static dt_result dti_replay_priorities(dt_replay *r, dti_reader *f) {
    for (uint64_t i = 0; i < r->leaves; i++) {
        double value = 0.0;
        DTI_TRY(i < r->count ? dti_reader_take(f, &value, sizeof value) : DT_OK);
        if (i < r->count && !(value > 0.0 && value <= r->largest))
            return dti_replay_damaged(f, "a priority is not valid");
        r->tree[r->leaves + i] = value;
    }
    for (uint64_t i = r->leaves - 1; i; i--)
        r->tree[i] = r->tree[2 * i] + r->tree[2 * i + 1];
    return DT_OK;
}

/* A failure leaves the buffer empty. */
static dt_result dti_replay_take(dt_replay *r, dti_reader *f, const dti_replay_head *head) {
    r->count = head->count;
    r->next = head->next;
    r->largest = head->largest;
    dt_result result = dti_reader_seek(f, sizeof *head);
    if (!result)
        result = dti_reader_take(f, r->items, (size_t)(r->count * r->desc.item_bytes));
    if (!result && r->tree)
        result = dti_replay_priorities(r, f);
    if (!result) {
        r->drawn = head->drawn;
        return DT_OK;
    }
    r->count = r->next = 0;
    r->largest = 1.0;
    if (r->tree)
        memset(r->tree, 0, (size_t)r->leaves * 2 * sizeof *r->tree);
    return result;
}

static dt_result dti_replay_read(dt_replay *r, dti_reader *f) {
    dti_replay_head head;
    if (f->size < sizeof head + sizeof(uint32_t))
        return dti_replay_damaged(f, "it is too short");
    DTI_TRY(dti_reader_take(f, &head, sizeof head));
    DTI_TRY(dti_replay_alike(r, f, &head));
    DTI_TRY(dti_replay_whole(r, f, &head));
    DTI_TRY(dti_replay_sum(f));
    return dti_replay_take(r, f, &head);
}

DTI_PUBLIC(dt_replay_load, (dt_replay * r, const char *path), r, DTI_OF(dt_replay), (r, path)) {
    dti_reader f;
    DTI_NEED(r->base, path);
    DTI_TRY(dti_reader_open(r->base, path, &f));
    const dt_result result = dti_replay_read(r, &f);
    dti_reader_close(&f);
    return result;
}
