/* ---- Token files: raw numbers of tokens, 16 or 32 bits each, little end first (NumPy's tofile of
 * uint16 or uint32), in windows. Nothing is held in memory but a window for each thread that reads,
 * so a file may be larger than memory. A sample is `window` tokens, and its targets are the tokens
 * one further on:
 *
 *     dt_tokens *text;
 *     dt_tokens_desc desc = {.window = 256, .vocabulary = 50257};
 *     dt_tokens_open(ctx, "train.bin", &desc, &text);
 *     dt_tokens_dataset(text, ids, targets, &job.data);      // both i32 [256] */

typedef struct dt_tokens dt_tokens;

typedef struct dt_tokens_desc {
    int bits;            /* of a token: 16 or 32; 0 = 16 */
    int window;          /* tokens of a sample; 1 or more */
    int stride;          /* tokens between the beginnings of two samples; 0 = window */
    uint64_t skip_bytes; /* in front: a header */
    /* Tokens are below it; 0 = any. One that is not is an error of its step, with the byte. */
    uint32_t vocabulary;
    int threads; /* dt_dataset.threads; 0 = 1, at most 64 */
} dt_tokens_desc;

/* Opens a file; .window alone must be given. Samples are the windows that have a token behind them.
 * Ownership: *out is yours; close it before the context, behind the trainer. Errors, with *out
 * NULL: INVALID (NULL; a description without meaning), IO, FORMAT (its bytes are no whole tokens,
 * or too few for one sample), MEMORY. */
DT_API dt_result dt_tokens_open(dt_ctx *ctx, const char *path, const dt_tokens_desc *desc,
                                dt_tokens **out);
/* NULL is allowed. */
DT_API void dt_tokens_close(dt_tokens *tokens);
/* Samples in it; 0 for NULL. */
DT_API uint64_t dt_tokens_rows(const dt_tokens *tokens);
/* The set: `ids`, i32 [window], gets a window; `targets`, i32 [window], the tokens one further on;
 * nil = none. Errors, with *out empty: INVALID; UNSUPPORTED (more than 2^32 - 1 samples: a larger
 * stride). Threads: the set's callback may run on any number at once. */
DT_API dt_result dt_tokens_dataset(dt_tokens *tokens, dt_tensor ids, dt_tensor targets,
                                   dt_dataset *out);
