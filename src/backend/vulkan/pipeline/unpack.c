/* Decodes a module of shader_table.h; spirv_pack.py encodes it. Of SPIR-V it knows only that an
 * instruction is a word with size and opcode, followed by operands. Each bit of an operand has
 * adaptive odds of its own, by opcode and place. A range coder uses these odds. Ids are numbered as
 * they are defined, so most operands are a small distance from the newest id. Whatever the bytes
 * say, only `count` words are written. */

/* How likely a bit is 1: 32768 + one of 65536, learnt from the first bits faster. */
typedef struct dti_vk_odds {
    int16_t one;
    uint16_t seen; /* bits, up to 15 */
} dti_vk_odds;

#define DTI_VK_ODDS (1u << 17)

typedef struct dti_vk_reader {
    const uint8_t *at, *end;
    uint32_t low, high, code; /* the interval that is left, and where the bytes point in it */
    dti_vk_odds *odds;        /* DTI_VK_ODDS; zeros at first */
} dti_vk_reader;

static void dti_vk_reader_shift(dti_vk_reader *p) {
    p->low <<= 8;
    p->high = p->high << 8 | 255;
    p->code = p->code << 8 | (p->at < p->end ? *p->at++ : 0u);
}

static uint32_t dti_vk_reader_bit(dti_vk_reader *p, uint32_t context, uint32_t node) {
    const uint32_t mixed = context * 0x9e3779b1u ^ node * 0x85ebca6bu;
    dti_vk_odds *odds = p->odds + (((mixed ^ mixed >> 15) * 0xc2b2ae35u) >> 15);
    const uint32_t one = (uint32_t)(32768 + odds->one), rate = 3u * odds->seen + 4;
    const uint32_t middle = p->low + ((p->high - p->low) >> 16) * one;
    const uint32_t bit = p->code <= middle;
    if (bit)
        p->high = middle;
    else
        p->low = middle + 1;
    while ((p->low ^ p->high) < 1u << 24)
        dti_vk_reader_shift(p);
    odds->one = (int16_t)(odds->one +
                          (bit ? (int32_t)((65535 - one) * 3 / rate) : -(int32_t)(one * 3 / rate)));
    odds->seen = (uint16_t)DTI_MIN(odds->seen + 1, 15);
    return bit;
}

/* Reads the number of bits of n + 1 after its first, in unary, and then those bits. */
static uint32_t dti_vk_reader_number(dti_vk_reader *p, uint32_t context) {
    uint32_t bits = 0;
    uint64_t n = 1;
    while (bits < 32 && dti_vk_reader_bit(p, context, bits))
        bits++;
    for (uint32_t i = 0; i < bits; i++)
        n = n << 1 | dti_vk_reader_bit(p, context, 64 + ((uint32_t)n << 6 | bits));
    return (uint32_t)(n - 1);
}

/* An operand: a new id, a plain word, or an id by its distance from the next new one. */
static uint32_t dti_vk_reader_operand(dti_vk_reader *p, uint32_t opcode, uint32_t place,
                                      uint32_t *next) {
    const uint32_t context = (opcode << 3 | (place > 7 ? 6 | (place & 1) : place)) << 3;
    const uint32_t distant = dti_vk_reader_bit(p, context, 0);
    const uint32_t kind = distant << 1 | dti_vk_reader_bit(p, context, 1 + distant);
    if (kind == 0)
        return (*next)++;
    const uint32_t n = dti_vk_reader_number(p, context | kind);
    return kind == 1 ? n : kind == 2 ? *next - 1 - n : *next + 1 + n;
}

/* Whether the module's header has the number of ids that were made. `words` may be NULL. The header
 * counts as an instruction's five operands. */
static bool dti_vk_reader_module(dti_vk_reader *p, uint32_t *words, size_t count) {
    uint32_t next = 1, opcode = 0, size = 5, place = 0, bound = 0;
    p->low = p->code = 0;
    p->high = UINT32_MAX;
    for (int i = 0; i < 4; i++)
        dti_vk_reader_shift(p);
    for (size_t made = 0; made < count; made++) {
        uint32_t word;
        if (place == size) {
            opcode = dti_vk_reader_number(p, 1u << 20 | opcode);
            size = dti_vk_reader_number(p, 1u << 21 | opcode);
            word = (size + 1) << 16 | opcode;
            place = 0;
        } else {
            word = dti_vk_reader_operand(p, opcode, place++, &next);
            bound = made == 3 ? word : bound;
        }
        if (words)
            words[made] = word;
    }
    return place == size && bound == next;
}

/* `odds` has DTI_VK_ODDS, all 0. They learn from one module first, which is like all others. */
static bool dti_vk_shader_unpack(const dti_vk_shader *shader, const uint8_t *packed, size_t bytes,
                                 dti_vk_odds *odds, uint32_t *words) {
    const dti_vk_shader *first = &dti_vk_shaders[DTI_VK_SHADER_FIRST];
    dti_vk_reader p = {.odds = odds};
    if (shader != first) {
        p.at = (const uint8_t *)first->packed;
        p.end = p.at + first->packed_bytes;
        (void)dti_vk_reader_module(&p, NULL, first->word_count);
    }
    p.at = packed;
    p.end = packed + bytes;
    return dti_vk_reader_module(&p, words, shader->word_count);
}
