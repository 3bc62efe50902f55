/* ---- Token files: windows of tokens for language models
 *
 * A file is token numbers of 16 or 32 bits, little-endian: NumPy's tofile of uint16 or uint32. A
 * file may be larger than memory. A sample is `window` tokens. Its targets are the same tokens
 * shifted by one. */

typedef struct dt_tokens dt_tokens;

typedef struct dt_tokens_desc {
    int bits;            /* bits of a token: 16 or 32; 0 = 16 */
    int window;          /* tokens per sample; 1 to 2^24; required */
    int stride;          /* tokens between the starts of two samples; 0 = window */
    uint64_t skip_bytes; /* bytes of a header at the start of the file */
    /* Number of different tokens. A token of this number or above is an error of the step that
     * reads it, with the byte. 0 = 2^31 - 1. */
    uint32_t vocabulary;
    int threads; /* becomes dt_dataset.threads; at most 64; 0 = 1 */
} dt_tokens_desc;

/* Opens a token file.
 * Ownership: yours. Close it after the trainer.
 * Errors: INVALID, IO, FORMAT (not a whole number of tokens, too few tokens for one sample),
 * MEMORY. */
DT_API dt_result dt_tokens_open(dt_ctx *ctx, const char *path, const dt_tokens_desc *desc,
                                dt_tokens **out);
/* Closes the file, before its context is destroyed. */
DT_API void dt_tokens_close(dt_tokens *tokens);
/* Returns the number of samples. */
DT_API uint64_t dt_tokens_rows(const dt_tokens *tokens);
/* Makes a data set of the file.
 * ids: input i32 [window]; receives a window.
 * targets: input i32 [window]; receives the next token of each. nil = off.
 * Threads: the set's callback: any, at once.
 * Errors: INVALID (an input of another shape or type), UNSUPPORTED (more
 * than 2^32 - 1 samples: use a larger stride). */
DT_API dt_result dt_tokens_dataset(dt_tokens *tokens, dt_tensor ids, dt_tensor targets,
                                   dt_dataset *out);
