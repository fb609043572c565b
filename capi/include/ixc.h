/* ixc from C: runs models, and a model's routed experts as an operator.
 *
 * docs/c-api.md has examples and the rules in full; docs/moe-operator.md describes the operator.
 *
 * Errors. Most functions return an ixc_status: IXC_OK, which is 0, or the class of the error.
 * The comments of all other functions state what these return on failure. ixc_error() then has the
 * reason for this thread's last failure, in one line.
 *
 * Ownership. Functions whose last argument is a pointer to a handle create a handle, or write NULL
 * on failure. The caller frees it with the function that its type names. Freeing NULL does nothing.
 * Handles may be freed in any order: a model stays in memory until the last handle that uses it is
 * freed. Arguments are copied; no pointer of the caller is kept after a call, unless a function
 * says so.
 *
 * Threads. All functions may be called from any thread, and by several threads at once. Calls with
 * one model run one after the other, as do calls with one chat, sampler or embedder. Functions
 * for tokens, texts and facts do not wait for other calls. A function that frees a handle must be
 * the last that uses it.
 *
 * Signals. On Linux, the first model that is opened from a file installs a handler of SIGBUS, so
 * that a model file that is cut short gives an error. Other faults go to the handler that was
 * installed before.
 *
 * Texts are UTF-8. A length counts bytes. IXC_TERMINATED in its place means that the text ends
 * with 0. Texts without a length end with 0.
 *
 * A buffer has a pointer, a capacity in elements, and a pointer to which the number of elements is
 * written. The number is always written. If it exceeds the capacity, nothing else is written, and
 * the status is IXC_BUFFER. A NULL buffer with capacity 0 queries the number. Texts also need an
 * element for the terminating 0, which the number does not include.
 *
 * Structs with a field `size` first: set it to sizeof the struct. Set all other fields of options to
 * 0 for the defaults, as `ixc_model_options options = {sizeof options};` does. Programs then work
 * with later libraries whose structs have more fields.
 */
#ifndef IXC_H
#define IXC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. It changes when a program must be compiled again. Libraries with more
 * functions or more fields in structs with sizes have the same version. */
#define IXC_ABI_VERSION 2

/* Returns the IXC_ABI_VERSION of the library. */
uint32_t ixc_abi_version(void);

/* Returns the version of the library, such as "0.1.0". The text is valid forever. */
const char *ixc_library_version(void);

/* ---- Errors ------------------------------------------------------------------------------- */

typedef enum {
    IXC_OK = 0,
    IXC_USAGE = 1,       /* an argument is wrong, or a file would be overwritten */
    IXC_DATA = 2,        /* a model, a plan or a request is malformed or not supported */
    IXC_NO_INPUT = 3,    /* a file is missing or may not be read */
    IXC_UNAVAILABLE = 4, /* the CPU lacks a feature of the target */
    IXC_IO = 5,          /* reading or writing failed */
    IXC_INTERRUPTED = 6, /* the cancellation switch of the call was set */
    IXC_FAILED = 7,      /* other failures, such as a lack of memory */
    IXC_PANIC = 8,       /* a bug in the library; close the handles of the call */
    IXC_BUFFER = 9       /* a buffer is too small */
} ixc_status;

/* Returns the reason of this thread's last failure, or "" without one. Calls that succeed keep it.
 * The text is valid until this thread's next failure. */
const char *ixc_error(void);

/* Returns the status of this thread's last failure, or IXC_OK without one. */
ixc_status ixc_error_status(void);

/* Returns the name of a status, such as "no input"; NULL if there is no such status. The text is
 * valid forever. */
const char *ixc_status_name(uint32_t status);

/* ---- Messages ----------------------------------------------------------------------------- */

#define IXC_LOG_ERROR 1
#define IXC_LOG_WARNING 2
#define IXC_LOG_INFO 3
#define IXC_LOG_DEBUG 4
#define IXC_LOG_TRACE 5

/* Receives a message: one line, valid during the call. Any thread may call it, several at once. It
 * must not call functions of this header. */
typedef void (*ixc_log_callback)(void *user, int level, const char *text);

/* Sets the receiver of messages up to a level, for the whole process; initially NULL. NULL
 * removes the receiver: it is not called after this function has returned. The library keeps `user`. */
ixc_status ixc_set_log(int max_level, ixc_log_callback callback, void *user);

/* ---- Cancellation ------------------------------------------------------------------------- */

/* A cancellation switch, which ends calls of other threads. Free it with ixc_cancel_free. */
typedef struct ixc_cancel ixc_cancel;

ixc_status ixc_cancel_new(ixc_cancel **cancel);

/* Sets the switch (1) or resets it (0). Calls with a set switch end at their next step, and calls
 * that begin later end at once. Never waits. A signal handler may not call it. */
ixc_status ixc_cancel_set(ixc_cancel *cancel, int is_set);

/* Frees the switch. Calls that use it continue. */
void ixc_cancel_free(ixc_cancel *cancel);

/* ---- Models ------------------------------------------------------------------------------- */

/* A loaded model. Free it with ixc_model_close. */
typedef struct ixc_model ixc_model;

/* Options of loading. */
typedef struct {
    size_t size;
    const char *target;     /* "avx2", "avx512", "amx", "portable"; NULL: the best of this machine */
    const char *model_file; /* the model file of a plan; NULL: the path in the plan */
    uint64_t memory;        /* max bytes of the process, beyond which experts are streamed; 0: automatic */
    uint32_t threads;       /* 0: one for each processor */
    uint32_t context;       /* tokens of the longest text; 0: the model's, at most 4096 */
    uint32_t sequences;     /* max sequences of ixc_sequence_new, 0: none; for an embedder: texts at once, 0: one */
    uint32_t max_step;      /* max tokens of a step; 0: 512 to 2048, by the model; no effect for a plan */
} ixc_model_options;

/* Opens a GGUF file, a folder of safetensors, or a plan of `ixc compile`. Compiles and loads the
 * model, which takes seconds. `options` may be NULL. */
ixc_status ixc_model_open(const char *path, const ixc_model_options *options, ixc_model **model);

void ixc_model_close(ixc_model *model);

/* Value of a token field of ixc_facts if the model has no such token. */
#define IXC_NO_TOKEN UINT32_MAX

/* Facts about a loaded model. */
typedef struct {
    size_t size;
    uint64_t weight_bytes;    /* bytes of the stored weights */
    uint32_t vocabulary;      /* number of tokens, and of logits in a row */
    uint32_t context;         /* tokens of the longest text */
    uint32_t trained_context; /* tokens of the longest text of the training */
    uint32_t max_step;        /* max tokens of a step */
    uint32_t sequences;       /* max sequences of ixc_sequence_new */
    uint32_t threads;
    uint32_t bos;             /* the token before a text, or IXC_NO_TOKEN */
    uint32_t eos;             /* the token after a text, or IXC_NO_TOKEN */
} ixc_facts;

/* Writes facts. The caller sets facts->size. */
ixc_status ixc_model_facts(const ixc_model *model, ixc_facts *facts);

/* Return the names of the architecture and of the target, or NULL on failure. The texts are valid
 * until the model is closed. */
const char *ixc_model_architecture(const ixc_model *model);
const char *ixc_model_target(const ixc_model *model);

/* ---- Texts and tokens --------------------------------------------------------------------- */

/* The length of a text that ends with 0. */
#define IXC_TERMINATED SIZE_MAX

/* Flags of the functions below and of ixc_generate_options. */
#define IXC_ADD_BOS 1u         /* tokenize: begin with BOS if the model needs it */
#define IXC_PARSE_SPECIAL 2u   /* tokenize: names of special tokens become these tokens */
#define IXC_SHOW_SPECIAL 4u    /* detokenize, generate: control tokens have their names as text */
#define IXC_AT_START 8u        /* detokenize: the text begins here, so drop a space that tokenizing added */
#define IXC_IGNORE_END 16u     /* generate: never draw a token that ends the text */
#define IXC_NO_CACHE 32u       /* generate: compute the whole prompt again */
#define IXC_RESUME_SAMPLER 64u /* generate: continue the draws of a state that ixc_state_load read */

/* Writes the tokens of a text. Flags: IXC_ADD_BOS, IXC_PARSE_SPECIAL. A prompt needs both, unless
 * it has text of users. */
ixc_status ixc_tokenize(const ixc_model *model, const char *text, size_t bytes, uint32_t flags, uint32_t *tokens,
                        size_t capacity, size_t *count);

/* Writes the bytes of tokens, which may be parts of a character or contain 0. Flags:
 * IXC_SHOW_SPECIAL, IXC_AT_START. */
ixc_status ixc_detokenize(const ixc_model *model, const uint32_t *tokens, size_t count, uint32_t flags, char *text,
                          size_t capacity, size_t *bytes);

/* Returns 1 if the token ends a text, 0 if not, -1 on failure. */
int ixc_is_end(const ixc_model *model, uint32_t token);

/* ---- Samplers ----------------------------------------------------------------------------- */

/* Settings of sampling, and their state. Free it with ixc_sampler_free. */
typedef struct ixc_sampler ixc_sampler;

/* Creates a sampler with llama.cpp's defaults (temperature 0.8, top_k 40, top_p 0.95, min_p 0.05)
 * and seed 0. */
ixc_status ixc_sampler_new(ixc_sampler **sampler);

void ixc_sampler_free(ixc_sampler *sampler);

/* Sets a number, such as "temperature", "top_k", "top_p", "min_p", "repeat_penalty" or "mirostat".
 * The error for a wrong name lists all names, and docs/api-fields.md describes them. Temperature 0
 * is greedy. The four functions that change settings fail after the first token. */
ixc_status ixc_sampler_set(ixc_sampler *sampler, const char *name, double value);
ixc_status ixc_sampler_set_seed(ixc_sampler *sampler, uint64_t seed);

/* Sets the samplers and their order: names with `;` between them, such as "top_k;temperature". */
ixc_status ixc_sampler_set_order(ixc_sampler *sampler, const char *names);

/* Adds a number to the logit of a token; -INFINITY forbids the token. */
ixc_status ixc_sampler_bias(ixc_sampler *sampler, uint32_t token, float bias);

/* Records tokens, such as those of a prompt, for the penalties of later draws. */
ixc_status ixc_sampler_accept(ixc_sampler *sampler, const ixc_model *model, const uint32_t *tokens, size_t count);

/* Draws a token from a row of logits, and records it. The row has one logit for each token of the
 * vocabulary. */
ixc_status ixc_sampler_sample(ixc_sampler *sampler, const ixc_model *model, const float *logits, size_t count,
                              uint32_t *token);

/* ---- Generation --------------------------------------------------------------------------- */

/* The part of an answer that a piece of text belongs to. Without a chat, all text is content. */
typedef enum {
    IXC_CONTENT = 0,
    IXC_REASONING = 1,
    IXC_CALL = 2,     /* the name of a tool that is called */
    IXC_ARGUMENTS = 3 /* arguments of the last call */
} ixc_part;

/* A piece of generated text: whole characters, and no part of a stop text. */
typedef struct {
    size_t size;
    const char *text; /* not terminated; valid during the call */
    size_t bytes;
    ixc_part part;
    uint32_t token; /* the last token that was drawn */
} ixc_piece;

/* Receives text on the thread that called the generating function. A result other than 0 stops the
 * generation. The callback may call functions for texts, tokens and facts, and ixc_cancel_set. Other
 * calls with the same model or chat fail. The callback must return: no exception and no longjmp may
 * leave it. */
typedef int (*ixc_text_callback)(void *user, const ixc_piece *piece);

/* Options of a generation. */
typedef struct {
    size_t size;
    const ixc_sampler *sampler; /* the sampler's settings are used, not its state; NULL: those of ixc_sampler_new */
    size_t max_tokens;          /* 0: until the model ends the text or the context is full */
    const char *const *stop;    /* texts that end the generation and are not part of it */
    size_t stop_count;
    const char *grammar;        /* GBNF, or Lark after "%llguidance"; NULL: none */
    const char *json_schema;    /* a JSON schema for the text; NULL: none */
    ixc_text_callback on_text;  /* NULL: none */
    void *user;                 /* the first argument of on_text */
    const ixc_cancel *cancel;   /* NULL: none */
    uint32_t flags;             /* IXC_SHOW_SPECIAL, IXC_IGNORE_END, IXC_NO_CACHE, IXC_RESUME_SAMPLER */
    uint32_t reserved;          /* 0 */
} ixc_generate_options;

/* The reason of a text's end. */
typedef enum {
    IXC_END_TOKEN = 0,    /* the model ended the text */
    IXC_END_GRAMMAR = 1,  /* the grammar allows no further token */
    IXC_END_LIMIT = 2,    /* the text has max_tokens tokens */
    IXC_END_CONTEXT = 3,  /* the context is full */
    IXC_END_STOP = 4,     /* a stop text was generated */
    IXC_END_CALLBACK = 5, /* the callback stopped the text */
    IXC_END_CANCELLED = 6 /* the cancellation switch was set during the generation */
} ixc_end;

/* Counts and times of a generation. */
typedef struct {
    size_t size;
    size_t prompt_tokens;
    size_t computed_tokens; /* tokens of the prompt that were not cached */
    size_t generated_tokens;
    double prompt_seconds;
    double generation_seconds;
} ixc_stats;

/* A tool call of an answer. The texts are valid until the generation is freed. */
typedef struct {
    size_t size;
    const char *id;
    const char *name;
    const char *arguments; /* a JSON object; only its beginning if the answer was cut off */
} ixc_call;

/* A generated text. Free it with ixc_generation_free. */
typedef struct ixc_generation ixc_generation;

/* Generates a text after a prompt of at least one token. The model keeps the states of its last
 * text: if a prompt begins with the same tokens, only its other tokens are computed. `options` may be
 * NULL. A switch that is set before the first step gives IXC_INTERRUPTED. */
ixc_status ixc_generate(const ixc_model *model, const uint32_t *prompt, size_t count,
                        const ixc_generate_options *options, ixc_generation **generation);

void ixc_generation_free(ixc_generation *generation);

/* Return the text, without reasoning and calls, and the reasoning, or NULL on failure. Write the
 * length unless `bytes` is NULL. The texts end with 0 and are valid until the generation is
 * freed. */
const char *ixc_generation_text(const ixc_generation *generation, size_t *bytes);
const char *ixc_generation_reasoning(const ixc_generation *generation, size_t *bytes);

/* Returns the generated tokens, or NULL on failure. Writes their number unless `count` is NULL. The
 * tokens are valid until the generation is freed. */
const uint32_t *ixc_generation_tokens(const ixc_generation *generation, size_t *count);

/* Returns an ixc_end, or -1 on failure. */
int ixc_generation_end(const ixc_generation *generation);

/* Writes counts and times. The caller sets stats->size. */
ixc_status ixc_generation_stats(const ixc_generation *generation, ixc_stats *stats);

/* Returns the number of tool calls; 0 on failure. */
size_t ixc_generation_call_count(const ixc_generation *generation);

/* Writes the tool call with this number, counted from 0. The caller sets call->size. */
ixc_status ixc_generation_call(const ixc_generation *generation, size_t number, ixc_call *call);

/* ---- States in files ---------------------------------------------------------------------- */

/* Writes the states of the model's last text to a file. A file of another kind is not replaced. */
ixc_status ixc_state_save(const ixc_model *model, const char *path);

/* Reads the states of a text. If a prompt begins with the text's tokens, only its other tokens are
 * computed, with the same bits. */
ixc_status ixc_state_load(ixc_model *model, const char *path);

/* Writes the tokens of the last text: its prompt and the generated tokens. */
ixc_status ixc_state_tokens(const ixc_model *model, uint32_t *tokens, size_t capacity, size_t *count);

/* ---- Sequences and steps ------------------------------------------------------------------ */

/* A sequence of tokens whose states the model keeps, separate from its last text. Free it with
 * ixc_sequence_free. */
typedef struct ixc_sequence ixc_sequence;

/* Creates an empty sequence. Set `sequences` of ixc_model_options to the number of sequences. */
ixc_status ixc_sequence_new(const ixc_model *model, ixc_sequence **sequence);

void ixc_sequence_free(ixc_sequence *sequence);

/* Writes the tokens of the sequence. */
ixc_status ixc_sequence_tokens(const ixc_sequence *sequence, uint32_t *tokens, size_t capacity, size_t *count);

/* Truncates the sequence to its first tokens, and writes the number of remaining tokens. Some models
 * can only restore states at few positions. Fewer tokens may then remain. */
ixc_status ixc_sequence_truncate(ixc_sequence *sequence, size_t tokens, size_t *left);

/* Makes the sequence `to` a copy of the first tokens of the sequence `from` of the same model. Writes
 * the number of copied tokens, which may be smaller than `tokens`, as for ixc_sequence_truncate. */
ixc_status ixc_sequence_copy(const ixc_sequence *from, ixc_sequence *to, size_t tokens, size_t *copied);

/* Write a sequence to a file, or replace a sequence by the one in a file. If loading fails, the
 * sequence is empty. */
ixc_status ixc_sequence_save(const ixc_sequence *sequence, const char *path);
ixc_status ixc_sequence_load(ixc_sequence *sequence, const char *path);

/* Tokens that a step adds to a sequence. */
typedef struct {
    ixc_sequence *sequence;
    const uint32_t *tokens;
    size_t count;            /* at least 1 */
    const uint32_t *outputs; /* positions in `tokens` whose logits are requested */
    size_t output_count;     /* 0: none */
} ixc_addition;

/* Computes tokens of one or several sequences in one step, at most max_step of ixc_facts in all.
 * Writes the logits of the requested positions, a row of `vocabulary` numbers for each. Weights are
 * read once for all sequences. Nothing is computed if the buffer is too small, or NULL although
 * logits are requested. */
ixc_status ixc_step(const ixc_model *model, const ixc_addition *additions, size_t count, float *logits,
                    size_t capacity, size_t *needed);

/* ---- Conversations ------------------------------------------------------------------------ */

/* A conversation with a model. Free it with ixc_chat_free. */
typedef struct ixc_chat ixc_chat;

/* Options of a conversation. */
typedef struct {
    size_t size;
    const char *chat_template; /* Jinja source, or a name such as "chatml"; NULL: the model's */
    const char *renderer;      /* path of the program `ixc`, which renders untrusted templates in a process of its
                                * own; NULL: this process renders them, without a limit of memory */
} ixc_chat_options;

/* A message. The role is required; other texts may be NULL. */
typedef struct {
    size_t size;
    const char *role; /* "system", "user", "assistant", "tool" */
    const char *content;
    const char *reasoning;    /* of the assistant */
    const char *tool_calls;   /* of the assistant: a JSON array in OpenAI's form, with arguments as text */
    const char *tool_call_id; /* of a tool's result */
    const char *name;         /* of a tool or a user */
} ixc_message;

/* Begins a conversation without messages. `options` may be NULL. */
ixc_status ixc_chat_new(const ixc_model *model, const ixc_chat_options *options, ixc_chat **chat);

void ixc_chat_free(ixc_chat *chat);

/* Add a message at the end of the conversation, or remove the last message. */
ixc_status ixc_chat_add(ixc_chat *chat, const ixc_message *message);
ixc_status ixc_chat_remove_last(ixc_chat *chat);

/* Sets the tools: a JSON array in OpenAI's form, [{"type": "function", "function": {"name": ...}}].
 * NULL: none. If the template does not print tools, the prompt describes them as text. */
ixc_status ixc_chat_set_tools(ixc_chat *chat, const char *tools);

/* Sets a variable of the template, such as "enable_thinking", to a JSON value. */
ixc_status ixc_chat_set_variable(ixc_chat *chat, const char *name, const char *value);

/* Writes the tokens of the conversation, up to the beginning of the next answer. */
ixc_status ixc_chat_tokens(const ixc_chat *chat, uint32_t *tokens, size_t capacity, size_t *count);

/* Generates an answer and adds it to the conversation, even if it was stopped. Fails if the
 * conversation does not fit in the context. `options` may be NULL. An incomplete tool call is
 * returned as text if the answer ends with IXC_END_TOKEN or IXC_END_GRAMMAR. Otherwise the call is
 * truncated. */
ixc_status ixc_chat_generate(ixc_chat *chat, const ixc_generate_options *options, ixc_generation **generation);

/* ---- Embeddings --------------------------------------------------------------------------- */

/* A model that embeds texts. Free it with ixc_embedder_close. */
typedef struct ixc_embedder ixc_embedder;

/* Opens an embedding model, or any other model for embeddings. `options` may be NULL. */
ixc_status ixc_embedder_open(const char *path, const ixc_model_options *options, ixc_embedder **embedder);

void ixc_embedder_close(ixc_embedder *embedder);

/* Returns the length of a vector; 0 on failure. */
size_t ixc_embedder_width(const ixc_embedder *embedder);

/* Writes the vectors of texts [count][width], each with the length that the model declares, 1 in
 * most cases. `bytes` are the lengths of the texts, or NULL if all end with 0. `cancel` may be
 * NULL; a set switch gives IXC_INTERRUPTED. */
ixc_status ixc_embed(ixc_embedder *embedder, const char *const *texts, const size_t *bytes, size_t count,
                     const ixc_cancel *cancel, float *vectors, size_t capacity, size_t *needed);

/* ---- Routed experts ----------------------------------------------------------------------- */

/* The id of an expert that another process computes. */
#define IXC_NO_EXPERT (-1)

/* A model's routed experts. */
typedef struct ixc_moe ixc_moe;
/* Rows that are being computed. */
typedef struct ixc_job ixc_job;

/* Options for compiling and running experts. If all fields are 0, the best values for this machine
 * are used. */
typedef struct {
    const char *target; /* "avx2", "avx512", "amx", "portable"; NULL: the best of this machine */
    uint64_t memory;    /* max bytes, beyond which experts are streamed; 0: all free memory */
    uint32_t threads;   /* 0: one for each processor */
    uint32_t max_rows;  /* max rows of a step; 0: 512 to 2048, by the model; must be 0 for a plan, which has its own */
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

/* Opens a GGUF file, a folder of safetensors, or a plan of `ixc compile --moe`. `options` may be
 * NULL. Returns NULL on failure, as ixc_moe_submit does. */
ixc_moe *ixc_moe_open(const char *path, const ixc_options *options);

/* Completes all submitted jobs, and frees the experts. Does nothing for NULL. */
void ixc_moe_close(ixc_moe *moe);

/* Returns the number of layers with routed experts, and writes up to `room` of them to `layers`.
 * `layers` may be NULL if room is 0. Returns -1 on failure, as the functions below do. */
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
