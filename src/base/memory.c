/* The context's memory. Every host byte that dtrain holds comes from here and is counted, zeroed
 * and 64-byte aligned (a cache line, and the widest vector). The size is stored before the block,
 * for the host's free. The pool's threads never allocate: only the thread that calls dtrain
 * does. */

/* One cache line before each block; only the size is used. */
#define DTI_MEMORY_ALIGN 64

/* The system's own pointer is stored just before the aligned block. aligned_alloc does not exist
 * everywhere, and it may write zeros into pages that are zero already. Here, large memory that is
 * never used, such as a gradient that other ranks compute, takes no pages. A block of several huge
 * pages begins at a huge page, unless that reserved far more than is used. */
static void *dti_malloc_aligned(void *user, size_t bytes, size_t align) {
    const bool huge = bytes >= 2 * DTI_HUGE_PAGE && bytes <= DTI_HUGE_MOST;
    if (huge)
        align = DTI_HUGE_PAGE;
    if (bytes > SIZE_MAX - align - sizeof(void *))
        return NULL;
    char *raw = calloc(1, bytes + align + sizeof(void *));
    if (!raw)
        return NULL;
    uintptr_t start = (uintptr_t)raw + sizeof(void *);
    char *block = raw + sizeof(void *) + (align - start % align) % align;
    memcpy(block - sizeof(void *), &raw, sizeof(void *));
    if (huge)
        dti_pages_huge(block, bytes);
    return block;
}

static void dti_malloc_free(void *user, void *memory, size_t bytes) {
    void *raw;
    memcpy(&raw, (char *)memory - sizeof(void *), sizeof(void *));
    free(raw);
}

static bool dti_forked(const dti_base *base) {
    return base->at_home ? !*base->at_home : base->process != dti_process();
}

static dt_result dti_check_forked(dti_base *base) {
    if (!dti_forked(base))
        return DT_OK;
    return dti_fail(base, DT_ERROR_FORKED,
                    "called in process %ld, a child of fork, but process %ld created the context; "
                    "create one after the fork",
                    dti_process(), base->process);
}

static void dti_base_init(dti_base *base, const dt_allocator *allocator, const dt_logger *logger) {
    *base = (dti_base){.process = dti_process()};
    if (allocator && allocator->alloc && allocator->free)
        base->allocator = *allocator;
    else
        base->allocator = (dt_allocator){.alloc = dti_malloc_aligned, .free = dti_malloc_free};
    if (logger)
        base->logger = *logger;
}

static void *dti_host_alloc(dti_base *base, size_t bytes) {
    const dt_allocator *a = &base->allocator;
    if (a->alloc == dti_malloc_aligned)
        return dti_malloc_aligned(NULL, bytes, DTI_MEMORY_ALIGN);
    dti_visit visit;
    dti_visit_host(&visit, base, DTI_IN_CALLBACK);
    void *block = a->alloc(a->user, bytes, DTI_MEMORY_ALIGN);
    dti_visit_returned(&visit);
    return block;
}

static void dti_host_free(dti_base *base, void *block, size_t bytes) {
    const dt_allocator *a = &base->allocator;
    if (a->free == dti_malloc_free) {
        dti_malloc_free(NULL, block, bytes);
        return;
    }
    dti_visit visit;
    dti_visit_host(&visit, base, DTI_IN_CALLBACK);
    a->free(a->user, block, bytes);
    dti_visit_returned(&visit);
}

static void *dti_alloc(dti_base *base, size_t bytes) {
    char *block = NULL;
    if (bytes <= SIZE_MAX - DTI_MEMORY_ALIGN) {
        size_t whole = bytes + DTI_MEMORY_ALIGN;
        block = dti_host_alloc(base, whole);
    }
    if (!block) {
        dti_fail(base, DT_ERROR_MEMORY, "out of host memory: %llu bytes requested, %llu in use",
                 (unsigned long long)bytes, (unsigned long long)base->bytes_now);
        return NULL;
    }
    if (base->allocator.alloc != dti_malloc_aligned)
        memset(block, 0, bytes + DTI_MEMORY_ALIGN);
    memcpy(block, &bytes, sizeof bytes);
    base->alloc_calls++;
    base->bytes_now += bytes;
    base->bytes_peak = DTI_MAX(base->bytes_peak, base->bytes_now);
    return block + DTI_MEMORY_ALIGN;
}

static void *dti_alloc_array(dti_base *base, size_t count, size_t size) {
    if (size && count > SIZE_MAX / size) {
        dti_fail(base, DT_ERROR_MEMORY,
                 "out of host memory: %llu items of %llu bytes exceed the address space",
                 (unsigned long long)count, (unsigned long long)size);
        return NULL;
    }
    return dti_alloc(base, count * size);
}

static char *dti_alloc_text(dti_base *base, const char *text) {
    const size_t size = strlen(text) + 1;
    char *copy = dti_alloc(base, size);
    if (copy)
        memcpy(copy, text, size);
    return copy;
}

static void dti_free(dti_base *base, void *memory) {
    if (!memory)
        return;
    char *block = (char *)memory - DTI_MEMORY_ALIGN;
    size_t bytes;
    memcpy(&bytes, block, sizeof bytes);
    DTI_ASSERT(base->bytes_now >= bytes);
    base->bytes_now -= bytes;
    dti_host_free(base, block, bytes + DTI_MEMORY_ALIGN);
}

static void dti_free_all(dti_base *base, void *const *all, size_t count) {
    for (size_t i = 0; i < count; i++)
        dti_free(base, all[i]);
}

static bool dti_free_public(dt_ctx *ctx, void *memory, const char *name) {
    dti_visit visit;
    const bool taken = dti_enter(ctx, &visit, DTI_CTX, name) || !ctx;
    if (taken && ctx)
        dti_free(dti_ctx_base(ctx), memory);
    dti_leave(&visit, DT_OK);
    return taken;
}

static void dti_own(dti_owned **list, dti_owned *item, void (*destroy)(dti_owned *self)) {
    item->next = *list;
    item->destroy = destroy;
    *list = item;
}

static void dti_disown(dti_owned **list, dti_owned *item) {
    while (*list && *list != item)
        list = &(*list)->next;
    if (*list)
        *list = item->next;
}

static void dti_destroy_owned(dti_owned **list) {
    while (*list)
        (*list)->destroy(*list);
}
