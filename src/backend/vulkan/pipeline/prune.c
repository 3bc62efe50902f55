/* Takes out of a module's functions what its selectors, which are constants by now, leave
 * unreachable. A driver does so too, but only after it has read and checked everything. Without
 * this, compiling takes a fifth longer on RADV (docs/speed.md). A branch that cannot be taken, and
 * blocks that nothing leads to, become OpNop, which are then left out. A module that is not
 * understood stays as it is. */

enum { /* of SPIR-V */
       DTI_SPIRV_PHI = 245,
       DTI_SPIRV_LOOP_MERGE = 246,
       DTI_SPIRV_SELECTION_MERGE = 247,
       DTI_SPIRV_LABEL = 248,
       DTI_SPIRV_BRANCH = 249,
       DTI_SPIRV_BRANCH_CONDITIONAL = 250,
       DTI_SPIRV_SWITCH = 251,
       DTI_SPIRV_UNREACHABLE = 255,
       DTI_SPIRV_FUNCTION_END = 56,
       DTI_SPIRV_NEGATE = 126, /* the first of arithmetic, and the last */
       DTI_SPIRV_MUL_EXTENDED = 152
};

#define DTI_SPIRV_NOP DTI_SPIRV_HEAD(1, 0)

static void dti_spirv_clear(uint32_t *w, size_t size) {
    for (size_t i = 0; i < size; i++)
        w[i] = DTI_SPIRV_NOP;
}

/* Labels that a block's last instruction names: *first, and every `step`th after it. */
static size_t dti_spirv_targets(const uint32_t *w, size_t *first, size_t *step) {
    const size_t size = w[0] >> 16;
    *step = 1;
    switch (w[0] & 0xffffu) {
    case DTI_SPIRV_BRANCH: *first = 1; return size > 1;
    case DTI_SPIRV_BRANCH_CONDITIONAL: *first = 2; return size > 3 ? 2 : 0;
    case DTI_SPIRV_SWITCH: *first = *step = 2; return size > 2 ? (size - 1) / 2 : 0;
    default: return 0;
    }
}

static bool dti_spirv_leads_to(const uint32_t *w, uint32_t label) {
    size_t first = 0, step = 0;
    const size_t count = dti_spirv_targets(w, &first, &step);
    for (size_t i = 0; i < count; i++)
        if (w[first + i * step] == label)
            return true;
    return false;
}

/* A branch on a known value goes one way. A switch keeps its construct, because blocks within may
 * leave from anywhere. */
static void dti_spirv_decide(const dti_spirv_module *m, uint32_t *merge, uint32_t *w) {
    const uint32_t size = w[0] >> 16;
    uint32_t value;
    if ((w[0] & 0xffffu) == DTI_SPIRV_BRANCH_CONDITIONAL && size > 3 &&
        dti_spirv_value(m, w[1], &value)) {
        const uint32_t to = value ? w[2] : w[3];
        dti_spirv_clear(merge, merge[0] >> 16);
        dti_spirv_clear(w, size);
        w[0] = DTI_SPIRV_HEAD(2, DTI_SPIRV_BRANCH);
        w[1] = to;
    } else if ((w[0] & 0xffffu) == DTI_SPIRV_SWITCH && size > 2 && size % 2 &&
               dti_spirv_value(m, w[1], &value)) {
        for (uint32_t i = 3; i < size; i += 2)
            if (w[i] == value)
                w[2] = w[i + 1];
        dti_spirv_clear(w + 3, size - 3);
        w[0] = DTI_SPIRV_HEAD(3, DTI_SPIRV_SWITCH);
    }
}

/* Decides branches, and notes of each label where its block's last instruction is. False where an
 * instruction does not fit. */
static bool dti_spirv_blocks(const dti_spirv_module *m, size_t start) {
    uint32_t label = m->bound;
    bool entry = false;
    for (size_t at = start, before = start, size; at < m->made; before = at, at += size) {
        uint32_t *w = m->words + at;
        const uint32_t opcode = w[0] & 0xffffu;
        size = w[0] >> 16;
        if (size == 0 || size > m->made - at)
            return false;
        if (opcode == DTI_SPIRV_FUNCTION)
            entry = true;
        if (opcode == DTI_SPIRV_LABEL) {
            if (size != 2 || w[1] >= m->bound)
                return false;
            label = w[1];
            m->ids[label] = (dti_spirv_id){entry ? DTI_SPIRV_IS_LIVE : DTI_SPIRV_IS_BLOCK, 0};
            entry = false;
        }
        if ((m->words[before] & 0xffffu) == DTI_SPIRV_SELECTION_MERGE)
            dti_spirv_decide(m, m->words + before, w);
        if (opcode == DTI_SPIRV_FUNCTION_END)
            label = m->bound;
        if (label < m->bound)
            m->ids[label].value = (uint32_t)at; /* the last of them stays */
    }
    return true;
}

/* Marks a label as live, or as a merge block, which keeps its label even if it is unreachable.
 * True: it has become live. */
static bool dti_spirv_mark(const dti_spirv_module *m, uint32_t label, bool reached) {
    if (label >= m->bound)
        return false;
    dti_spirv_id *id = &m->ids[label];
    if (id->kind == DTI_SPIRV_IS_BLOCK && !reached)
        id->kind = DTI_SPIRV_IS_MERGE;
    const bool more = reached && (id->kind == DTI_SPIRV_IS_BLOCK || id->kind == DTI_SPIRV_IS_MERGE);
    if (more)
        id->kind = DTI_SPIRV_IS_LIVE;
    return more;
}

static bool dti_spirv_is_live(const dti_spirv_module *m, uint32_t label) {
    return label < m->bound && m->ids[label].kind == DTI_SPIRV_IS_LIVE;
}

/* Goes over all blocks once; false if no more are reached. *whole: each live loop's continue block
 * is live too. */
static bool dti_spirv_reach(const dti_spirv_module *m, size_t start, bool *whole) {
    uint32_t label = m->bound;
    bool more = false;
    *whole = true;
    for (size_t at = start; at < m->made; at += m->words[at] >> 16) {
        const uint32_t *w = m->words + at, opcode = w[0] & 0xffffu, size = w[0] >> 16;
        size_t first = 0, step = 0;
        if (opcode == DTI_SPIRV_LABEL)
            label = w[1];
        if (!dti_spirv_is_live(m, label))
            continue;
        if ((opcode == DTI_SPIRV_SELECTION_MERGE || opcode == DTI_SPIRV_LOOP_MERGE) && size > 2)
            more = dti_spirv_mark(m, w[1], false) || more;
        if (opcode == DTI_SPIRV_LOOP_MERGE && size > 2)
            *whole = *whole && dti_spirv_is_live(m, w[2]);
        const size_t count = dti_spirv_targets(w, &first, &step);
        for (size_t i = 0; i < count; i++)
            more = dti_spirv_mark(m, w[first + i * step], true) || more;
    }
    return more;
}

/* Without values from where nothing comes any more. */
static void dti_spirv_join(const dti_spirv_module *m, uint32_t *w, uint32_t label) {
    const uint32_t size = w[0] >> 16;
    uint32_t made = 3;
    for (uint32_t i = 3; i + 1 < size; i += 2)
        if (dti_spirv_is_live(m, w[i + 1]) &&
            dti_spirv_leads_to(m->words + m->ids[w[i + 1]].value, label)) {
            w[made++] = w[i];
            w[made++] = w[i + 1];
        }
    if (size > made)
        dti_spirv_clear(w + made, size - made);
    if (size > 3)
        w[0] = DTI_SPIRV_HEAD(made, DTI_SPIRV_PHI);
}

/* An unreachable instruction. Arithmetic may have a decoration, which is removed too. */
static void dti_spirv_remove(const dti_spirv_module *m, uint32_t *w) {
    const uint32_t opcode = w[0] & 0xffffu, size = w[0] >> 16;
    if (opcode >= DTI_SPIRV_NEGATE && opcode <= DTI_SPIRV_MUL_EXTENDED && size > 3 &&
        w[2] < m->bound)
        m->ids[w[2]].kind = DTI_SPIRV_IS_GONE;
    dti_spirv_clear(w, size);
}

/* Removes blocks that nothing leads to; of a merge block the label stays. */
static void dti_spirv_settle(const dti_spirv_module *m, size_t start) {
    uint32_t label = m->bound;
    bool first = false; /* after a label */
    for (size_t at = start, size; at < m->made; at += size) {
        uint32_t *w = m->words + at;
        const uint32_t opcode = w[0] & 0xffffu;
        const bool opens = opcode == DTI_SPIRV_LABEL;
        size = w[0] >> 16;
        label = opens ? w[1] : opcode == DTI_SPIRV_FUNCTION_END ? m->bound : label;
        if (label < m->bound && m->ids[label].kind == DTI_SPIRV_IS_LIVE) {
            if (opcode == DTI_SPIRV_PHI)
                dti_spirv_join(m, w, label);
        } else if (label < m->bound && (!opens || m->ids[label].kind == DTI_SPIRV_IS_BLOCK)) {
            dti_spirv_remove(m, w);
            if (first && m->ids[label].kind == DTI_SPIRV_IS_MERGE)
                w[0] = DTI_SPIRV_HEAD(1, DTI_SPIRV_UNREACHABLE);
        }
        first = opens;
    }
}

static bool dti_spirv_is_gone(const dti_spirv_module *m, const uint32_t *w) {
    return w[0] == DTI_SPIRV_NOP || (w[0] == DTI_SPIRV_HEAD(3, DTI_SPIRV_DECORATE) &&
                                     w[1] < m->bound && m->ids[w[1]].kind == DTI_SPIRV_IS_GONE);
}

/* Functions begin at word `start`. */
static void dti_spirv_prune(dti_spirv_module *m, size_t start) {
    bool whole = true;
    if (!dti_spirv_blocks(m, start))
        return;
    while (dti_spirv_reach(m, start, &whole)) {
    }
    for (uint32_t id = 0; id < m->bound && !whole; id++) /* all stay */
        (void)dti_spirv_mark(m, id, true);
    dti_spirv_settle(m, start);
    const size_t end = m->made;
    m->made = DTI_VK_SPIRV_HEADER;
    for (size_t at = DTI_VK_SPIRV_HEADER, size; at < end; at += size) {
        size = m->words[at] >> 16;
        if (!dti_spirv_is_gone(m, m->words + at))
            dti_spirv_emit(m, m->words + at, size);
    }
}

/* Returns the module's new number of words, which is not larger. There is room for twice that
 * number, where known values are written. */
static size_t dti_vk_shader_specialize(uint32_t *words, size_t count, const uint32_t *selectors,
                                       uint32_t selector_count) {
    dti_spirv_module m = {.words = words,
                          .made = DTI_VK_SPIRV_HEADER,
                          .ids = (dti_spirv_id *)(words + count),
                          .bound = words[3],
                          .selectors = selectors,
                          .selector_count = selector_count};
    if (m.bound > count * sizeof *words / sizeof *m.ids)
        return count;
    memset(m.ids, 0, m.bound * sizeof *m.ids);
    size_t at = DTI_VK_SPIRV_HEADER;
    while (at < count && (words[at] & 0xffffu) != DTI_SPIRV_FUNCTION) {
        const uint32_t size = words[at] >> 16;
        if (size < 2 || size > count - at) /* before functions SPIR-V has no such instruction */
            break;
        dti_spirv_specialize_one(&m, words + at, size);
        at += size;
    }
    const size_t start = m.made;
    dti_spirv_emit(&m, words + at, count - at);
    dti_spirv_prune(&m, start);
    return m.made;
}
