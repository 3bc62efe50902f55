/* A type of elements: its size, its names and the kind of number. All code that turns elements into
 * bytes asks here. */

/* X(id, bytes of an element, text): dt_dtype once more, in its order. */
#define DTI_DTYPE_LIST(X)                                                                          \
    X(F32, 4, "f32")                                                                               \
    X(I32, 4, "i32")                                                                               \
    X(F64, 8, "f64")                                                                               \
    X(BF16, 2, "bf16")                                                                             \
    X(F16, 2, "f16")                                                                               \
    X(I64, 8, "i64")                                                                               \
    X(U8, 1, "u8")
#define DTI_X(id, bytes, text) +1
_Static_assert(0 DTI_DTYPE_LIST(DTI_X) == DT_U8 + 1, "every type");
#undef DTI_X

/* A word of the step block, the status, the block table and the optimizer's control. Its size does
 * not depend on the elements' type. */
#define DTI_WORD_BYTES 4u

/* Of one element; 0: no such type. */
DTI_INLINE size_t dti_dtype_bytes(dt_dtype dtype) {
    static const uint8_t bytes[] = {
#define DTI_X(id, bytes, text) [DT_##id] = bytes,
        DTI_DTYPE_LIST(DTI_X)
#undef DTI_X
    };
    return (unsigned)dtype < DTI_COUNT(bytes) ? bytes[dtype] : 0;
}

/* Of n elements. */
DTI_INLINE uint64_t dti_bytes(dt_dtype dtype, uint64_t n) {
    return dti_dtype_bytes(dtype) * n;
}

/* "f32" */
static inline const char *dti_dtype_name(dt_dtype dtype) {
    static const char *const names[] = {
#define DTI_X(id, bytes, text) [DT_##id] = text,
        DTI_DTYPE_LIST(DTI_X)
#undef DTI_X
    };
    return (unsigned)dtype < DTI_COUNT(names) ? names[dtype] : "an unknown type";
}

/* As safetensors files call it: "F32". */
static inline const char *dti_dtype_file_name(dt_dtype dtype) {
    static const char *const names[] = {
#define DTI_X(id, bytes, text) [DT_##id] = #id,
        DTI_DTYPE_LIST(DTI_X)
#undef DTI_X
    };
    return (unsigned)dtype < DTI_COUNT(names) ? names[dtype] : "?";
}

DTI_INLINE bool dti_is_half(dt_dtype dtype) {
    return dtype == DT_BF16 || dtype == DT_F16;
}

DTI_INLINE bool dti_is_whole(dt_dtype dtype) {
    return dtype == DT_I32 || dtype == DT_I64 || dtype == DT_U8;
}
