/* ixc from C: a model's routed experts as an operator (docs/moe-operator.md).
 *
 * Functions that fail return NULL or a negative number. ixc_error() then has the reason, in one
 * line, for this thread's last failure. All functions may be called from any thread, and by several
 * threads at once. A function that frees its argument must be the only one that uses it.
 */
#ifndef IXC_H
#define IXC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header; ixc_version() returns the library's. */
#define IXC_VERSION 1

/* The id of an expert that another process computes. */
#define IXC_NOBODY (-1)

/* A model's routed experts. */
typedef struct ixc_moe ixc_moe;
/* Rows that are being computed. */
typedef struct ixc_job ixc_job;

/* Options for compiling and running experts. All 0 selects the best for this machine. */
typedef struct {
    const char *target; /* "avx2", "avx512", "amx", "portable"; NULL: the best of this machine */
    uint64_t memory;    /* max bytes, beyond which experts are streamed; 0: all free memory */
    uint32_t threads;   /* 0: one for each processor */
    uint32_t max_rows;  /* rows of a step; 0: 512 to 2048, by the model; 0 for a plan, which sets it */
} ixc_options;

/* A layer that has routed experts. */
typedef struct {
    uint32_t layer;   /* number of the layer in the model */
    uint32_t width;   /* numbers in a row */
    uint32_t used;    /* experts that a row uses */
    uint32_t experts; /* experts of the layer */
} ixc_layer;

/* The type of a row's numbers. */
typedef enum { IXC_F32 = 0, IXC_BF16 = 1 } ixc_type;

uint32_t ixc_version(void);

/* Returns the reason of this thread's last failure, or "" without one. The text is valid until this
 * thread's next failure. */
const char *ixc_error(void);

/* Opens a GGUF file, a folder of safetensors, or a plan of `ixc compile --moe`. `options` may be
 * NULL. */
ixc_moe *ixc_moe_open(const char *path, const ixc_options *options);

/* Completes all submitted jobs, and frees the experts. Does nothing for NULL. */
void ixc_moe_close(ixc_moe *moe);

/* Returns the number of layers with routed experts, and writes up to `room` of them to `layers`.
 * `layers` may be NULL if room is 0. */
int64_t ixc_moe_layers(const ixc_moe *moe, ixc_layer *layers, size_t room);

/* Submits n rows of a layer: rows [n][width], ids [n][used], weights [n][used]. Copies the
 * arguments and returns at once. */
ixc_job *ixc_moe_submit(const ixc_moe *moe, uint32_t layer, ixc_type type, const void *rows, const int32_t *ids,
                        const float *weights, size_t n);

/* Waits for all submitted jobs. Returns 0. */
int ixc_moe_sync(const ixc_moe *moe);

/* Returns 1 if the job is done, else 0. */
int ixc_job_done(const ixc_job *job);

/* Waits for the job, writes its sums [n][width] to `sums`, which has room for `room` numbers, and
 * returns 0. Frees the job, even if the call fails. */
int ixc_job_wait(ixc_job *job, float *sums, size_t room);

/* Frees a job without reading its sums. Does nothing for NULL. */
void ixc_job_forget(ixc_job *job);

#ifdef __cplusplus
}
#endif

#endif
