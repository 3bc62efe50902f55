/* Checkpoints. A checkpoint is a safetensors file whose last tensor, "dtrain.crc32c", holds a
 * CRC32C of the header and of each other tensor. So every reader of safetensors can open it, and a
 * flipped bit is found. A folder of checkpoints has one file a step, and a file LATEST that names
 * the newest. The trainer knows what the tensors mean. */

/* A file that was checked and is open, without the checksums. No tensor's bytes are in memory.
 * dt_safetensors_close ends it. */
typedef dt_safetensors dti_checkpoint;

/* Fills `to` with bytes [offset, offset + bytes) of tensor `item`. Called with ranges in order. */
typedef dt_result dti_checkpoint_read_fn(void *user, int item, uint64_t offset, void *to,
                                         size_t bytes);

/* Logs the first NaN or infinity of a tensor's bytes from `offset` on; true: there is one. */
static bool dti_checkpoint_warn(dti_base *base, const dti_safetensors_item *item, uint64_t offset,
                                const void *data, size_t bytes);

/* A file that is being written. Bytes are added in the tensors' order, in pieces of any size. */
typedef struct dti_checkpoint_file dti_checkpoint_file;
static dt_result dti_checkpoint_begin(dti_base *base, const char *path,
                                      const dti_safetensors_item *items, int count,
                                      dti_checkpoint_file **out);
static dt_result dti_checkpoint_add(dti_checkpoint_file *f, const void *data, size_t bytes);
/* Writes all further tensors from `read`, through one buffer. */
static dt_result dti_checkpoint_fill(dti_checkpoint_file *f, dti_checkpoint_read_fn *read,
                                     void *user);
/* Lets the file appear once all bytes are written. If `own` is an error, removes the written bytes
 * and returns `own`. Frees f. */
static dt_result dti_checkpoint_end(dti_checkpoint_file *f, dt_result own);

/* Writes a whole checkpoint: writes path.tmp.PID.RANDOM, flushes it to the disk, renames it and
 * flushes the folder. If anything fails, the temporary file is removed, the old file stays, and the
 * error names operation and path (a full disk: how many bytes are needed). The folder is flushed
 * last. If that fails, the new file exists already, and the text says so. An error of `read` is
 * returned unchanged. INVALID: an item has the name of the checksums. */
static dt_result dti_checkpoint_write(dti_base *base, const char *path,
                                      const dti_safetensors_item *items, int count,
                                      dti_checkpoint_read_fn *read, void *user);
/* Reads a file once, through a buffer, and checks everything. FORMAT: not safetensors, truncated,
 * no checksums, or one that is wrong (names the tensor). */
static dt_result dti_checkpoint_open(dti_base *base, const char *path, dti_checkpoint **out);
/* The same on one of the ranks that share the reading: of parts only each `shares`th is checked. */
static dt_result dti_checkpoint_open_share(dti_base *base, const char *path, uint32_t share,
                                           uint32_t shares, dti_checkpoint **out);
static bool dti_checkpoint_is_checked(const dti_checkpoint *c, int index); /* a tensor is, here */
/* FORMAT: the tensors have a wrong meaning. desc: the description whose member allows it. */
typedef dt_result dti_checkpoint_check_fn(const dti_checkpoint *c, const char *path,
                                          const char *desc);
/* A tensor by its name, without .data; NULL = not found. */
static const dt_safetensors_tensor *dti_checkpoint_find(const dti_checkpoint *c, const char *name);
/* The path of its parts; NULL: it is one file, or none. */
static const char *dti_checkpoint_parts_path(const dti_checkpoint *c);
static const dt_safetensors_tensor *dti_checkpoint_at(const dti_checkpoint *c, int index);
static int dti_checkpoint_index(const dti_checkpoint *c, const char *name); /* -1: not found */
/* Reads bytes [offset, offset + bytes) of a tensor. IO: they cannot be read any more. */
static dt_result dti_checkpoint_read(const dti_checkpoint *c, int index, uint64_t offset,
                                     uint64_t bytes, void *to);

/* ---- A folder: step-000000000123.safetensors, or a folder step-000000000123 of parts, and LATEST.
 * One job at a time writes to it. Without POSIX: UNSUPPORTED. */
#define DTI_CHECKPOINT_PATH 1024
/* Whether a name is that of a step's file or folder. */
static bool dti_checkpoint_step_of(const char *name, uint64_t *step);
static bool dti_checkpoint_is_folder(const char *path);
typedef struct dti_checkpoint_folder_step {
    char folder[DTI_CHECKPOINT_PATH];
    uint64_t step;
    int keep;
    bool parts; /* it is a folder */
} dti_checkpoint_folder_step;
/* After the step's file exists: writes LATEST, and removes old files. */
static dt_result dti_checkpoint_folder_end(dti_base *base, const dti_checkpoint_folder_step *s);
/* Before the first checkpoint: makes the folder if it does not exist (its parent must). Checks that
 * files can be created in it. IO: the text has the reason and what to do. */
static dt_result dti_checkpoint_folder_ready(dti_base *base, const char *folder);
/* Before a job's first write: makes the folder, and locks it against other jobs. The lock ends when
 * *lock, unless it is -1, is closed (dti_stream_close). IO: another job has it, named by its host
 * and process. */
static dt_result dti_checkpoint_folder_lock(dti_base *base, const char *folder, int *lock);
/* dti_checkpoint_begin of a step's file; dti_checkpoint_end does the rest. And all in one: makes
 * the folder if it does not exist (its parent must), and removes temporary files that a crash left.
 * Then it writes the step's file, and LATEST. Then it removes the files of that form of this and
 * earlier steps, except the newest `keep` (at least 1). Files of later steps stay: after a return
 * to an earlier step it is not known which run is wanted. Files that cannot be removed give a
 * warning. If LATEST cannot be written, the step's file stays and nothing is removed. */
static dt_result dti_checkpoint_folder_begin(dti_base *base, const char *folder, uint64_t step,
                                             int keep, const dti_safetensors_item *items, int count,
                                             dti_checkpoint_file **out);
static dt_result dti_checkpoint_folder_write(dti_base *base, const char *folder, uint64_t step,
                                             int keep, const dti_safetensors_item *items, int count,
                                             dti_checkpoint_read_fn *read, void *user);
/* The file that LATEST names. If it is missing or names none, the one with the highest step. *found
 * false: none, or no folder. It is not opened. */
static dt_result dti_checkpoint_folder_newest(dti_base *base, const char *folder,
                                              char path[DTI_CHECKPOINT_PATH], bool *found);
/* The good file with the highest step, other than `bad` (may be NULL); `older`: only of earlier
 * steps; `check`: it passes that (NULL: no check). Each is read whole until one is good. The
 * recorded error stays as it was, and nothing is logged. */
static bool dti_checkpoint_folder_good(dti_base *base, const char *folder, const char *bad,
                                       bool older, dti_checkpoint_check_fn *check,
                                       char path[DTI_CHECKPOINT_PATH]);
/* The steps up to `most` that have a file, the newest first, at most `room`; their number. */
static int dti_checkpoint_folder_steps(const char *folder, uint64_t most, uint64_t *steps,
                                       int room);
/* Before anything is written: makes the folder if it does not exist, and removes temporary
 * files. */
static dt_result dti_checkpoint_folder_start(dti_base *base, const char *folder);
/* The name of a step's file, or of its folder if that exists. */
static dt_result dti_checkpoint_folder_file(dti_base *base, const char *folder, uint64_t step,
                                            char path[DTI_CHECKPOINT_PATH]);
/* Removes the files of all steps above this one; on the disk when it returns. */
static dt_result dti_checkpoint_folder_cut(dti_base *base, const char *folder, uint64_t step);

/* ---- A checkpoint in parts. Each rank writes one; it is a folder of the parts and an index. In a
 * job's folder its name is the step's, without .safetensors. */
#define DTI_CHECKPOINT_SEEN "a sharded checkpoint needs a folder that all ranks share"
#define DTI_CHECKPOINT_PART_PATH (DTI_CHECKPOINT_PATH + 128)
typedef struct dti_checkpoint_parts {
    char path[DTI_CHECKPOINT_PATH];           /* its final path */
    char temporary[DTI_CHECKPOINT_PATH + 64]; /* its path while it is written: rank 0's name, for
                                               * all */
    uint32_t rank, ranks;
    dti_checkpoint_folder_step step; /* .folder[0]: in a job's folder */
    dti_text index;                  /* rank 0's, without the parts' identities */
    uint32_t map_sum, *counts;       /* [ranks]: tensors of each */
    uint64_t begun;
    /* A time of dti_now_ns: parts are awaited until then, and as long as this rank's took. 0: not
     * started; 1: no longer. */
    _Atomic uint64_t until;
    bool unseen; /* it failed since a part was not there; a failure of rank 0's own comes first */
} dti_checkpoint_parts;
/* The random part of the temporary folder's name. Rank 0 draws it, and sends it to all. */
static void dti_checkpoint_parts_name(uint64_t name[2]);
static dt_result dti_checkpoint_parts_open(dti_base *base, dti_checkpoint_parts *p,
                                           const char *path, const uint64_t name[2], uint32_t rank,
                                           uint32_t ranks);
/* The same of a step in a job's folder. */
static dt_result dti_checkpoint_folder_parts(dti_base *base, dti_checkpoint_parts *p,
                                             const dti_checkpoint_folder_step *step,
                                             const uint64_t name[2], uint32_t rank, uint32_t ranks);
/* Rank 0, before all: makes the temporary folder. part_of: [count], the rank that writes each. */
static dt_result dti_checkpoint_parts_make(dti_base *base, dti_checkpoint_parts *p,
                                           const dti_safetensors_item *items, int count,
                                           const uint32_t *part_of);
/* This rank's part, with its own items. */
static dt_result dti_checkpoint_part_begin(dti_base *base, const dti_checkpoint_parts *p,
                                           const dti_safetensors_item *items, int count,
                                           dti_checkpoint_file **out);
/* Rank 0, last: waits for all parts, writes the index and lets the folder appear. If `own` is an
 * error, or one occurs, removes all. IO: a part does not appear, e.g. on another disk. */
static dt_result dti_checkpoint_parts_end(dti_base *base, dti_checkpoint_parts *p, dt_result own);
static void dti_checkpoint_parts_close(dti_base *base, dti_checkpoint_parts *p);
/* Its files and itself. False: it does not exist, or stays; errno says why. */
static bool dti_checkpoint_parts_remove(const char *folder);

/* ---- A step's file in a folder, written by a thread from a copy. */
typedef struct dti_checkpoint_copy dti_checkpoint_copy;
/* Added bytes go to memory, which is kept for the next time. dti_checkpoint_end starts the thread;
 * without a thread the file is there when it returns. *copy is made if it is NULL. The one before
 * must have been waited for. The thread warns of a NaN in the first `finite` tensors. Errors:
 * MEMORY; of the end, without a thread: the file's. */
static dt_result dti_checkpoint_copy_begin(dti_base *base, dti_checkpoint_copy **copy,
                                           const char *folder, uint64_t step, int keep,
                                           const dti_safetensors_item *items, int count, int finite,
                                           dti_checkpoint_file **out);
/* Then the thread writes this rank's part of a checkpoint, whose list is in the memory of this
 * base; rank 0's also ends it. */
static dti_base *dti_checkpoint_copy_parts(dti_checkpoint_copy *c, dti_checkpoint_parts *parts);
/* dti_checkpoint_add and dti_checkpoint_end for a copy. */
static void dti_checkpoint_copy_put(dti_checkpoint_copy *c, int item, uint64_t at, const void *data,
                                    size_t bytes);
static dt_result dti_checkpoint_copy_start(dti_base *base, dti_checkpoint_copy *c);
/* Waits until the file is on the disk: as dti_checkpoint_folder_write. OK if no copy is under
 * way. */
static dt_result dti_checkpoint_copy_wait(dti_base *base, dti_checkpoint_copy *copy);
static void dti_checkpoint_copy_free(dti_base *base, dti_checkpoint_copy *copy); /* NULL is fine */
