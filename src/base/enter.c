/* The entrance of all public functions that have an object. All objects of a context share its
 * base. One call at a time owns the base: it swaps its thread's address into base->owner. Each
 * thread has a list of frames on its stack, one for each call and each callback under way. They say
 * whether the library itself makes a call, or the host's code that the library has called.
 *
 * A refused call writes only base->refused and its count: the error's text is the owner's. A call
 * without an object is never refused. The outermost frame restores the host's floating-point
 * modes. */

#if defined DTI_COMPILES_GRAPH && !defined DT_IMPLEMENTATION
DTI_THREAD_LOCAL dti_visit *dti_visits;
#endif

enum { DTI_NESTED, DTI_GUEST, DTI_OWNS, DTI_REFUSED };

static dti_fp_modes dti_fp_enter(void) {
#if defined __SSE__
    unsigned saved, ieee = 0x1F80;
    __asm__ volatile("stmxcsr %0" : "=m"(saved) : : "memory");
    __asm__ volatile("ldmxcsr %0" : : "m"(ieee) : "memory");
    return saved;
#elif defined __aarch64__
    uint64_t modes, flags, ieee = 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(modes) : : "memory");
    __asm__ volatile("mrs %0, fpsr" : "=r"(flags) : : "memory");
    __asm__ volatile("msr fpcr, %0" : : "r"(ieee) : "memory");
    return (uint32_t)modes | flags << 32;
#else
    return 0;
#endif
}

static dti_fp_modes dti_fp_flush(void) {
    const dti_fp_modes saved = dti_fp_enter();
#if defined __SSE__
    unsigned flush = 0x9FC0;
    __asm__ volatile("ldmxcsr %0" : : "m"(flush) : "memory");
#elif defined __aarch64__
    uint64_t flush = 1 << 24;
    __asm__ volatile("msr fpcr, %0" : : "r"(flush) : "memory");
#endif
    return saved;
}

static void dti_fp_leave(dti_fp_modes saved) {
#if defined __SSE__
    __asm__ volatile("ldmxcsr %0" : : "m"(saved) : "memory");
#elif defined __aarch64__
    uint64_t modes = (uint32_t)saved, flags = saved >> 32;
    __asm__ volatile("msr fpsr, %0" : : "r"(flags) : "memory");
    __asm__ volatile("msr fpcr, %0" : : "r"(modes) : "memory");
#endif
}

/* The nearest frame of the base decides; a frame of the host's code between it and this call says
 * that the host makes the call. */
static int dti_admit(dti_base *base, const void *object, unsigned how) {
    const void *const self = &dti_visits, *none = NULL;
    const dti_visit *found = NULL;
    bool host = false;
    for (const dti_visit *f = dti_visits; f; f = f->below) {
        host = host || f->place != DTI_IN_LIBRARY;
        if (how & DTI_UNUSED && f->uses && f->uses(f->by, object))
            return DTI_REFUSED;
        if ((f->base != base && f->also != base) || found)
            continue;
        if (!host)
            return DTI_NESTED;
        found = f;
    }
    if (!found)
        return atomic_compare_exchange_strong_explicit(&base->owner, &none, self,
                                                       memory_order_acquire, memory_order_relaxed)
                   ? DTI_OWNS
                   : DTI_REFUSED;
    const bool reads =
        how & DTI_READS && atomic_load_explicit(&base->owner, memory_order_relaxed) == self;
    return found->place == DTI_IN_FIT || reads ? DTI_GUEST : DTI_REFUSED;
}

/* The second base: held as long as the first, or neither is. */
static void dti_admit_also(dti_visit *f, dti_base *also, const void *object, unsigned how) {
    const int entry = dti_admit(also, object, how & ~DTI_UNUSED);
    f->also = also;
    f->owns_also = entry == DTI_OWNS;
    if (entry != DTI_REFUSED)
        return;
    if (f->entry == DTI_OWNS)
        atomic_store_explicit(&f->base->owner, NULL, memory_order_release);
    f->entry = DTI_REFUSED;
}

static void *dti_enter(const void *object, dti_visit *f, unsigned how, const char *name) {
    const char *at = object;
    dti_base *base = NULL, *also = NULL;
    if (at && (how & DTI_CTX) == DTI_CTX)
        base = (dti_base *)(uintptr_t)at;
    else if (at)
        memcpy(&base, at + (how & DTI_CTX), sizeof base);
    if (at && how & DTI_WITH)
        memcpy(&also, at + (how & DTI_CTX) + sizeof base, sizeof also);
    dti_visit *const top = dti_visits;
    const bool inside = top && top->place == DTI_IN_LIBRARY;
    f->entry = DTI_NESTED;
    f->base = base;
    if (inside && (!base || top->base == base))
        return (void *)(uintptr_t)at;
    f->also = NULL;
    f->owns_also = false;
    f->entry = base ? dti_admit(base, at, how) : DTI_GUEST;
    if (also && (f->entry == DTI_OWNS || f->entry == DTI_GUEST))
        dti_admit_also(f, also, at, how);
    if (f->entry == DTI_REFUSED) {
        f->name = how & DTI_TELLS ? name : NULL;
        if (!f->name) {
            atomic_fetch_add_explicit(&base->refusals, 1, memory_order_relaxed);
            atomic_store_explicit(&base->refused, name, memory_order_relaxed);
        }
        return NULL;
    }
    if (f->entry == DTI_NESTED)
        return (void *)(uintptr_t)at;
    f->name = name;
    f->uses = NULL;
    f->place = DTI_IN_LIBRARY;
    f->modes = inside ? top->modes : dti_fp_enter();
    f->below = top;
    dti_visits = f;
    return (void *)(uintptr_t)at;
}

/* Logs the newest refused function that has no result to say so, and how many others there were. */
static void dti_tell_refused(const dti_visit *f, dti_base *base) {
    const char *name = atomic_exchange_explicit(&base->refused, NULL, memory_order_relaxed);
    const uint32_t count = atomic_exchange_explicit(&base->refusals, 0, memory_order_relaxed);
    char others[32] = "";
    if (count > 1)
        snprintf(others, sizeof others, " and %u other call%s", count - 1, count > 2 ? "s" : "");
    if (name && count)
        dti_log(base, DT_LOG_WARNING,
                "%s%s did nothing: called on a second thread, or in a callback, while the object "
                "was in use (now by %s)",
                name, others, f->name);
}

static void dti_release(const dti_visit *f, dti_base *base) {
    if (atomic_load_explicit(&base->refused, memory_order_relaxed))
        dti_tell_refused(f, base);
    atomic_store_explicit(&base->owner, NULL, memory_order_release);
}

static void dti_let_go(dti_visit *f) {
    if (f->owns_also && f->also)
        dti_release(f, f->also);
    if (f->entry == DTI_OWNS && f->base)
        dti_release(f, f->base);
    dti_visits = f->below;
    if (!f->below || f->below->place != DTI_IN_LIBRARY)
        dti_fp_leave(f->modes);
}

/* The handler sees a text of its own, and an object that is free again. */
DTI_NOINLINE dt_result dti_leave_failed(dti_visit *f, dt_result result) {
    const dt_on_error handler = f->base->on_error;
    char text[sizeof f->base->error];
    memcpy(text, f->base->error, sizeof text);
    dti_let_go(f);
    handler.call(handler.user, result, text);
    return result;
}

static dt_result dti_leave(dti_visit *f, dt_result result) {
    if (f->entry == DTI_NESTED)
        return result;
    const bool handled = f->base && f->base->on_error.call;
    if (f->entry == DTI_REFUSED) {
        result = dti_forked(f->base) ? DT_ERROR_FORKED : DT_ERROR_BUSY;
        if (handled && f->name)
            f->base->on_error.call(f->base->on_error.user, result, dt_result_text(result));
        return result;
    }
    if (handled && result)
        return dti_leave_failed(f, result);
    dti_let_go(f);
    return result;
}

static void dti_base_end(dti_base *base) {
    for (dti_visit *f = dti_visits; f; f = f->below) {
        f->also = f->also == base ? NULL : f->also;
        if (f->base != base)
            continue;
        if (f->place == DTI_IN_LIBRARY)
            dti_tell_refused(f, base);
        f->base = NULL;
    }
}

static void dti_visit_host(dti_visit *f, dti_base *base, dti_where place) {
    const dti_visit *top = dti_visits;
    *f = (dti_visit){.below = dti_visits, .base = base, .place = place, .modes = dti_fp_enter()};
    if (place != DTI_IN_VALUES)
        dti_fp_leave(top && top->place == DTI_IN_LIBRARY ? top->modes : f->modes);
    dti_visits = f;
}

static void dti_visit_returned(const dti_visit *f) {
    dti_visits = f->below;
    dti_fp_leave(f->modes);
}

static void dti_visit_join(dti_visit *f, dti_base *base) {
    *f = (dti_visit){.base = base, .place = DTI_IN_LIBRARY, .modes = dti_fp_enter()};
    dti_visits = f;
}

static const char *dti_function(void) {
    return dti_visits && dti_visits->name ? dti_visits->name : "dtrain";
}
