/* ixc from C: a model's routed experts as an operator (docs/moe-operator.md).
 *
 * Functions that can fail give NULL or a negative number, and ixc_error() says why, in one line, of this thread's last
 * failure. All of them may be called from any thread, and by several at once, but for those that free what they are given.
 */
#ifndef IXC_H
#define IXC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of the functions here; ixc_version() gives that of the library. */
#define IXC_VERSION 1

/* The id of an expert that is somebody else's. */
#define IXC_NOBODY (-1)

/* A model's routed experts. */
typedef struct ixc_moe ixc_moe;
/* Rows that are being computed. */
typedef struct ixc_job ixc_job;

/* How experts are compiled and run; all 0 is what is best here. */
typedef struct {
    const char *target; /* "avx2", "avx512", "amx", "portable"; NULL for the best that this machine runs */
    uint64_t memory;    /* bytes that all may take, beyond which experts are streamed; 0 for what the machine has left */
    uint32_t threads;   /* 0 for one for each processor */
    uint32_t max_rows;  /* rows of a step; 0 for 512 to 2048, by the model, and for a plan, which says it */
} ixc_options;

/* A layer that has routed experts. */
typedef struct {
    uint32_t layer;   /* its number in the model */
    uint32_t width;   /* numbers of a row */
    uint32_t used;    /* experts of a row */
    uint32_t experts; /* experts that there are */
} ixc_layer;

/* What rows are of. */
typedef enum { IXC_F32 = 0, IXC_BF16 = 1 } ixc_type;

uint32_t ixc_version(void);

/* Why this thread's last call failed; "" where none has. Until its next failure. */
const char *ixc_error(void);

/* Opens a GGUF file, a folder of safetensors, or a plan of `ixc compile --moe`. options may be NULL. */
ixc_moe *ixc_moe_open(const char *path, const ixc_options *options);

/* Computes what was submitted, and frees it. NULL is nothing. */
void ixc_moe_close(ixc_moe *moe);

/* How many layers have routed experts; as many of them as there is room for are put to `layers`, which may be NULL where room is 0. */
int64_t ixc_moe_layers(const ixc_moe *moe, ixc_layer *layers, size_t room);

/* Has n rows of a layer computed: rows [n][width], ids [n][used], weights [n][used]. Copies them and returns at once. */
ixc_job *ixc_moe_submit(const ixc_moe *moe, uint32_t layer, ixc_type type, const void *rows, const int32_t *ids,
                        const float *weights, size_t n);

/* Waits for all that was submitted. 0. */
int ixc_moe_sync(const ixc_moe *moe);

/* 1 where the job is done, 0 where it is not. */
int ixc_job_done(const ixc_job *job);

/* Waits for the job, puts its sums [n][width] to `sums`, which has room for `room` numbers, and frees it, also where it fails. 0. */
int ixc_job_wait(ixc_job *job, float *sums, size_t room);

/* Frees a job whose sums nobody wants. NULL is nothing. */
void ixc_job_forget(ixc_job *job);

#ifdef __cplusplus
}
#endif

#endif
