/* A module's selectors become constants, and what is computed of them too, before a driver gets it.
 * The driver need not do so. SwiftShader does not fold values computed from a selector. Its vectors
 * run both sides of a branch that it cannot decide, so each kernel ran all of its variants. Other
 * values stay, and the driver gets the selectors' values too. */

/* A known fact about an id. SELECTOR: its number is the value. COMPOSITE: the value is where its
 * instruction is. */
typedef struct dti_spirv_id {
    enum {
        DTI_SPIRV_OTHER,
        DTI_SPIRV_IS_BOOL,
        DTI_SPIRV_IS_WORD,
        DTI_SPIRV_IS_SELECTOR,
        DTI_SPIRV_IS_COMPOSITE,
        DTI_SPIRV_IS_VALUE,
        DTI_SPIRV_IS_BLOCK, /* a label: its value is the place of the block's last instruction */
        DTI_SPIRV_IS_MERGE, /* a block that is named, but not reached */
        DTI_SPIRV_IS_LIVE,
        DTI_SPIRV_IS_GONE /* a result */
    } kind;
    uint32_t value;
} dti_spirv_id;

typedef struct dti_spirv_module {
    uint32_t *words;
    size_t made; /* of them, contiguous from the start on */
    dti_spirv_id *ids;
    uint32_t bound;
    const uint32_t *selectors;
    uint32_t selector_count;
} dti_spirv_module;

static bool dti_spirv_value(const dti_spirv_module *m, uint32_t id, uint32_t *value) {
    *value = id < m->bound ? m->ids[id].value : 0;
    return id < m->bound && m->ids[id].kind == DTI_SPIRV_IS_VALUE;
}

static bool dti_spirv_extract(const dti_spirv_module *m, uint32_t id, uint32_t index,
                              uint32_t *value) {
    if (id >= m->bound || m->ids[id].kind != DTI_SPIRV_IS_COMPOSITE)
        return false;
    const uint32_t *w = m->words + m->ids[id].value;
    return index + 3 < w[0] >> 16 && dti_spirv_value(m, w[3 + index], value);
}

/* Booleans are 0 and 1. */
static bool dti_spirv_compute(uint32_t opcode, uint32_t a, uint32_t b, uint32_t c,
                              uint32_t *value) {
    switch (opcode) {
    case 128: *value = a + b; return true;
    case 130: *value = a - b; return true;
    case 132: *value = a * b; return true;
    case 134: *value = b ? a / b : 0; return b != 0;
    case 137: *value = b ? a % b : 0; return b != 0;
    case 164: /* booleans */
    case 170: *value = a == b; return true;
    case 165:
    case 171: *value = a != b; return true;
    case 166: /* booleans */
    case 197: *value = a | b; return true;
    case 167:
    case 199: *value = a & b; return true;
    case 168: *value = !a; return true;
    case 169: *value = a ? b : c; return true;
    case 172: *value = a > b; return true;
    case 174: *value = a >= b; return true;
    case 176: *value = a < b; return true;
    case 178: *value = a <= b; return true;
    case 194: *value = b < 32 ? a >> b : 0; return b < 32;
    case 196: *value = b < 32 ? a << b : 0; return b < 32;
    default: return false;
    }
}

/* OpSpecConstantOp: type, id, opcode, operands. */
static bool dti_spirv_fold(const dti_spirv_module *m, const uint32_t *w, uint32_t *value) {
    const uint32_t size = w[0] >> 16;
    uint32_t operand[3] = {0};
    if (size < 5 || size > 7)
        return false;
    if (w[3] == DTI_SPIRV_EXTRACT)
        return size == 6 && dti_spirv_extract(m, w[4], w[5], value);
    for (uint32_t i = 4; i < size; i++)
        if (!dti_spirv_value(m, w[i], &operand[i - 4]))
            return false;
    return dti_spirv_compute(w[3], operand[0], operand[1], operand[2], value);
}

static void dti_spirv_emit(dti_spirv_module *m, const uint32_t *w, size_t size) {
    memmove(m->words + m->made, w, size * sizeof *w);
    m->made += size;
}

/* A constant with the instruction's type and id. If the type is not known, nothing is computed. */
static void dti_spirv_emit_value(dti_spirv_module *m, const uint32_t *w, bool boolean,
                                 uint32_t value) {
    const uint32_t opcode = !boolean ? DTI_SPIRV_CONSTANT
                            : value  ? DTI_SPIRV_TRUE
                                     : DTI_SPIRV_FALSE;
    const uint32_t made[4] = {DTI_SPIRV_HEAD(boolean ? 3 : 4, opcode), w[1], w[2], value};
    if (w[1] < m->bound && w[2] < m->bound && m->ids[w[1]].kind)
        m->ids[w[2]] = (dti_spirv_id){DTI_SPIRV_IS_VALUE, boolean ? value != 0 : value};
    dti_spirv_emit(m, made, boolean ? 3 : 4);
}

/* The selector's value, or the module's default. */
static uint32_t dti_spirv_selected(const dti_spirv_module *m, uint32_t id, uint32_t own) {
    const bool given = id < m->bound && m->ids[id].kind == DTI_SPIRV_IS_SELECTOR &&
                       m->ids[id].value < m->selector_count;
    return given ? m->selectors[m->ids[id].value] : own;
}

/* An instruction that stays: records facts about its result. */
static void dti_spirv_note(const dti_spirv_module *m, const uint32_t *w, uint32_t size) {
    const uint32_t opcode = w[0] & 0xffffu;
    const bool type = opcode >= DTI_SPIRV_TYPE_BOOL && opcode <= DTI_SPIRV_TYPE_FLOAT;
    const uint32_t id = type ? w[1] : size > 2 ? w[2] : m->bound;
    dti_spirv_id known = {0};
    if (opcode == DTI_SPIRV_TYPE_BOOL)
        known.kind = DTI_SPIRV_IS_BOOL;
    else if (type && size > 2 && w[2] == 32)
        known.kind = DTI_SPIRV_IS_WORD;
    else if (opcode == DTI_SPIRV_CONSTANT && size == 4)
        known = (dti_spirv_id){DTI_SPIRV_IS_VALUE, w[3]};
    else if (opcode == DTI_SPIRV_TRUE || opcode == DTI_SPIRV_FALSE)
        known = (dti_spirv_id){DTI_SPIRV_IS_VALUE, opcode == DTI_SPIRV_TRUE};
    else if (opcode == DTI_SPIRV_COMPOSITE)
        known = (dti_spirv_id){DTI_SPIRV_IS_COMPOSITE, (uint32_t)m->made};
    if (known.kind && id < m->bound)
        m->ids[id] = known;
}

static void dti_spirv_specialize_one(dti_spirv_module *m, uint32_t *w, uint32_t size) {
    const uint32_t opcode = w[0] & 0xffffu;
    uint32_t value;
    if (opcode == DTI_SPIRV_DECORATE && size == 4 && w[2] == DTI_SPIRV_SPEC_ID && w[1] < m->bound) {
        m->ids[w[1]] = (dti_spirv_id){DTI_SPIRV_IS_SELECTOR, w[3]};
        return;
    }
    const bool boolean = opcode == DTI_SPIRV_SPEC_TRUE || opcode == DTI_SPIRV_SPEC_FALSE;
    if (size == 3 ? boolean : size == 4 && opcode == DTI_SPIRV_SPEC_CONSTANT) { /* a selector */
        value = dti_spirv_selected(m, w[2], boolean ? opcode == DTI_SPIRV_SPEC_TRUE : w[3]);
        dti_spirv_emit_value(m, w, boolean, value);
        return;
    }
    if (opcode == DTI_SPIRV_SPEC_OP && dti_spirv_fold(m, w, &value) && w[1] < m->bound &&
        w[2] < m->bound && m->ids[w[1]].kind) {
        dti_spirv_emit_value(m, w, m->ids[w[1]].kind == DTI_SPIRV_IS_BOOL, value);
        return;
    }
    if (opcode == DTI_SPIRV_SPEC_COMPOSITE)
        w[0] = DTI_SPIRV_HEAD(size, DTI_SPIRV_COMPOSITE);
    dti_spirv_note(m, w, size);
    dti_spirv_emit(m, w, size);
}
