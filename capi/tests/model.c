/* Runs a model through ixc.h: model MODEL TARGET FOLDER. Prints results for the comparison with
 * Rust, and checks the properties that only C can see. */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ixc.h"

#define CHECK(condition)                                                                                        \
    do {                                                                                                        \
        if (!(condition)) {                                                                                     \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, ixc_error());                            \
            exit(1);                                                                                            \
        }                                                                                                       \
    } while (0)
#define OK(call) CHECK((call) == IXC_OK)
/* Checks that a call fails with this status, and with a message that contains these words. */
#define FAILS(call, status, words)                                                                              \
    CHECK((call) == (status) && ixc_error_status() == (status) && strstr(ixc_error(), words) != NULL)

#define PROMPT "The borrow checker"

/* A received text, and the number of pieces after which the callback stops it. */
struct received {
    const ixc_model *model;
    ixc_cancel *cancel;
    char text[4096];
    size_t bytes;
    int pieces, stop_after, cancel_after;
};

static int receive(void *user, const ixc_piece *piece) {
    struct received *to = user;
    CHECK(piece->size == sizeof *piece && to->bytes + piece->bytes < sizeof to->text);
    memcpy(to->text + to->bytes, piece->text, piece->bytes);
    to->bytes += piece->bytes;
    to->pieces++;
    /* Texts, tokens and facts are allowed in a callback; other calls of the model fail. */
    ixc_facts facts = {.size = sizeof facts};
    OK(ixc_model_facts(to->model, &facts));
    CHECK(piece->token < facts.vocabulary && ixc_is_end(to->model, piece->token) == 0);
    size_t count;
    OK(ixc_detokenize(to->model, &piece->token, 1, 0, NULL, 0, &count));
    ixc_generation *nested = (ixc_generation *)1;
    FAILS(ixc_generate(to->model, &piece->token, 1, NULL, &nested), IXC_USAGE, "callback");
    CHECK(nested == NULL);
    if (to->cancel != NULL && to->pieces == to->cancel_after) OK(ixc_cancel_set(to->cancel, 1));
    return to->pieces == to->stop_after;
}

static int messages;

static void count_message(void *user, int level, const char *text) {
    CHECK(user == &messages && level >= IXC_LOG_ERROR && level <= IXC_LOG_DEBUG && strchr(text, '\n') == NULL);
    __atomic_add_fetch(&messages, 1, __ATOMIC_RELAXED);
}

static void print_bits(const char *name, const float *numbers, size_t count) {
    printf("%s", name);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &numbers[i], sizeof bits);
        printf(" %08x", bits);
    }
    printf("\n");
}

static size_t tokenize(const ixc_model *model, const char *text, uint32_t *tokens, size_t capacity) {
    size_t count;
    OK(ixc_tokenize(model, text, IXC_TERMINATED, IXC_ADD_BOS | IXC_PARSE_SPECIAL, tokens, capacity, &count));
    return count;
}

static ixc_sampler *greedy(void) {
    ixc_sampler *sampler;
    OK(ixc_sampler_new(&sampler));
    OK(ixc_sampler_set(sampler, "temperature", 0));
    return sampler;
}

static void check_texts(const ixc_model *model) {
    uint32_t tokens[64];
    size_t count, bytes;
    OK(ixc_tokenize(model, PROMPT, IXC_TERMINATED, IXC_ADD_BOS, NULL, 0, &count));
    CHECK(count > 1 && count <= 64);
    FAILS(ixc_tokenize(model, PROMPT, IXC_TERMINATED, IXC_ADD_BOS, tokens, count - 1, &count), IXC_BUFFER, "room for");
    CHECK(tokenize(model, PROMPT, tokens, 64) == count);
    char text[64];
    OK(ixc_detokenize(model, tokens, count, IXC_AT_START, NULL, 0, &bytes));
    CHECK(bytes == strlen(PROMPT));
    FAILS(ixc_detokenize(model, tokens, count, IXC_AT_START, text, bytes, &bytes), IXC_BUFFER, "room for");
    OK(ixc_detokenize(model, tokens, count, IXC_AT_START, text, bytes + 1, &bytes));
    CHECK(strcmp(text, PROMPT) == 0);
    OK(ixc_tokenize(model, PROMPT "!!", strlen(PROMPT), IXC_ADD_BOS, NULL, 0, &bytes));
    CHECK(bytes == count);
    OK(ixc_tokenize(model, NULL, 0, 0, tokens, 64, &count));
    CHECK(count == 0);

    FAILS(ixc_tokenize(NULL, PROMPT, IXC_TERMINATED, 0, tokens, 64, &count), IXC_USAGE, "model is NULL");
    FAILS(ixc_tokenize(model, NULL, IXC_TERMINATED, 0, tokens, 64, &count), IXC_USAGE, "text is NULL");
    FAILS(ixc_tokenize(model, NULL, 3, 0, tokens, 64, &count), IXC_USAGE, "text is NULL");
    FAILS(ixc_tokenize(model, "a\xff", IXC_TERMINATED, 0, tokens, 64, &count), IXC_USAGE, "not UTF-8: byte 1");
    FAILS(ixc_tokenize(model, PROMPT, IXC_TERMINATED - 1, 0, tokens, 64, &count), IXC_USAGE, "than memory can hold");
    FAILS(ixc_tokenize(model, PROMPT, IXC_TERMINATED, 0, NULL, 64, &count), IXC_USAGE, "tokens is NULL");
    FAILS(ixc_tokenize(model, PROMPT, IXC_TERMINATED, 0, tokens, 64, NULL), IXC_USAGE, "length is NULL");
    FAILS(ixc_tokenize(model, PROMPT, IXC_TERMINATED, 1u << 31, tokens, 64, &count), IXC_USAGE, "are not defined for this function");
    FAILS(ixc_tokenize(model, PROMPT, IXC_TERMINATED, 0, (uint32_t *)((char *)tokens + 1), 4, &count), IXC_USAGE, "multiple of 4");
    tokens[0] = UINT32_MAX;
    FAILS(ixc_detokenize(model, tokens, 1, 0, text, 64, &bytes), IXC_DATA, "4294967295");
    FAILS(ixc_detokenize(model, NULL, 1, 0, text, 64, &bytes), IXC_USAGE, "tokens is NULL");
    CHECK(ixc_is_end(NULL, 0) == -1);
}

static void check_models(const char *path, const ixc_model *model) {
    ixc_model *other = (ixc_model *)1;
    FAILS(ixc_model_open("/no/such/model.gguf", NULL, &other), IXC_NO_INPUT, "/no/such/model.gguf");
    CHECK(other == NULL);
    FAILS(ixc_model_open(NULL, NULL, &other), IXC_USAGE, "path is NULL");
    FAILS(ixc_model_open(path, NULL, NULL), IXC_USAGE, "model is NULL");
    ixc_model_options options = {.size = sizeof options, .target = "avx3"};
    FAILS(ixc_model_open(path, &options, &other), IXC_USAGE, "targets are");
    options = (ixc_model_options){.size = 0};
    FAILS(ixc_model_open(path, &options, &other), IXC_USAGE, "options->size is 0");
    struct {
        ixc_model_options known;
        uint64_t later;
    } newer = {.known = {.size = sizeof newer}, .later = 1};
    FAILS(ixc_model_open(path, &newer.known, &other), IXC_USAGE, "does not know");
    options = (ixc_model_options){.size = sizeof options, .threads = 1000000};
    CHECK(ixc_model_open(path, &options, &other) != IXC_OK && other == NULL);

    /* An older caller's struct is shorter. */
    ixc_facts facts;
    memset(&facts, 0xaa, sizeof facts);
    facts.size = offsetof(ixc_facts, context);
    OK(ixc_model_facts(model, &facts));
    CHECK(facts.vocabulary > 0 && facts.vocabulary != 0xaaaaaaaa && facts.context == 0xaaaaaaaa);
    FAILS(ixc_model_facts(model, NULL), IXC_USAGE, "facts is NULL");
    CHECK(ixc_model_architecture(NULL) == NULL && strlen(ixc_model_architecture(model)) > 0);
    CHECK(strcmp(ixc_status_name(IXC_BUFFER), "buffer") == 0 && ixc_status_name(99) == NULL);
    ixc_model_close(NULL);
}

static void check_samplers(const ixc_model *model) {
    ixc_sampler *sampler;
    OK(ixc_sampler_new(&sampler));
    FAILS(ixc_sampler_set(sampler, "heat", 1), IXC_USAGE, "temperature");
    FAILS(ixc_sampler_set(sampler, "top_p", 1.5), IXC_USAGE, "expected 0 to 1");
    FAILS(ixc_sampler_set(sampler, "top_p", NAN), IXC_USAGE, "expected 0 to 1");
    FAILS(ixc_sampler_set(sampler, "top_k", 1.5), IXC_USAGE, "whole number");
    FAILS(ixc_sampler_set(sampler, NULL, 1), IXC_USAGE, "name is NULL");
    FAILS(ixc_sampler_set_order(sampler, "top_k;heat"), IXC_USAGE, "samplers are");
    FAILS(ixc_sampler_bias(sampler, 1, INFINITY), IXC_USAGE, "bias");
    OK(ixc_sampler_set_order(sampler, "top_k;temperature"));
    OK(ixc_sampler_set(sampler, "dry_multiplier", 0.5));
    OK(ixc_sampler_bias(sampler, 1, -INFINITY));
    ixc_facts facts = {.size = sizeof facts};
    OK(ixc_model_facts(model, &facts));
    float *logits = calloc(facts.vocabulary, sizeof *logits);
    logits[17] = 50;
    uint32_t token;
    OK(ixc_sampler_accept(sampler, model, &facts.vocabulary, 1));
    OK(ixc_sampler_sample(sampler, model, logits, facts.vocabulary, &token));
    CHECK(token == 17);
    FAILS(ixc_sampler_set(sampler, "top_p", 1), IXC_USAGE, "settings cannot change");
    FAILS(ixc_sampler_sample(sampler, model, logits, 3, &token), IXC_USAGE, "found 3 logits");
    logits[3] = NAN;
    CHECK(ixc_sampler_sample(sampler, model, logits, facts.vocabulary, &token) == IXC_DATA ||
          ixc_error_status() == IXC_FAILED);
    free(logits);
    ixc_sampler_free(sampler);
    ixc_sampler_free(NULL);
}

static void print_text(const char *name, const ixc_generation *generation) {
    size_t bytes, count;
    const char *text = ixc_generation_text(generation, &bytes);
    CHECK(text != NULL && strlen(text) == bytes && ixc_generation_tokens(generation, &count) != NULL);
    printf("%s %d %zu", name, ixc_generation_end(generation), count);
    for (size_t i = 0; i < bytes; i++) printf(" %02x", (unsigned char)text[i]);
    printf("\n");
}

static void check_generation(ixc_model *model, const char *folder) {
    uint32_t prompt[64], tokens[256];
    size_t count = tokenize(model, PROMPT, prompt, 64), length;
    ixc_sampler *sampler = greedy();
    struct received received = {.model = model};
    ixc_generate_options how = {
        .size = sizeof how, .sampler = sampler, .max_tokens = 12, .on_text = receive, .user = &received, .flags = IXC_IGNORE_END};
    ixc_generation *generation;
    OK(ixc_generate(model, prompt, count, &how, &generation));
    print_text("text", generation);
    CHECK(strcmp(received.text, ixc_generation_text(generation, NULL)) == 0 && received.pieces > 1);
    CHECK(ixc_generation_end(generation) == IXC_END_LIMIT && ixc_generation_call_count(generation) == 0);
    ixc_stats stats = {.size = sizeof stats};
    OK(ixc_generation_stats(generation, &stats));
    CHECK(stats.prompt_tokens == count && stats.computed_tokens == count && stats.generated_tokens == 12);
    ixc_call call = {.size = sizeof call};
    FAILS(ixc_generation_call(generation, 0, &call), IXC_USAGE, "no tool call 0");
    ixc_generation_free(generation);

    /* The state goes to a file, and another prompt replaces it in the model. */
    char path[1024];
    snprintf(path, sizeof path, "%s/state", folder);
    OK(ixc_state_save(model, path));
    OK(ixc_state_tokens(model, tokens, 256, &length));
    CHECK(length == count + 12);
    how.on_text = NULL;
    OK(ixc_generate(model, tokens, length, &how, &generation));
    print_text("more", generation);
    char *expected = strdup(ixc_generation_text(generation, NULL));
    ixc_generation_free(generation);
    OK(ixc_generate(model, prompt + 1, 1, &how, &generation));
    ixc_generation_free(generation);
    OK(ixc_state_load(model, path));
    OK(ixc_state_tokens(model, tokens, 256, &length));
    CHECK(length == count + 12);
    OK(ixc_generate(model, tokens, length, &how, &generation));
    CHECK(strcmp(expected, ixc_generation_text(generation, NULL)) == 0);
    OK(ixc_generation_stats(generation, &stats));
    CHECK(stats.computed_tokens == 1);
    free(expected);
    ixc_generation_free(generation);

    /* Without stored states, the prompt gives the same text. */
    how.flags |= IXC_NO_CACHE;
    OK(ixc_generate(model, prompt, count, &how, &generation));
    CHECK(strcmp(received.text, ixc_generation_text(generation, NULL)) == 0);
    ixc_generation_free(generation);

    /* The callback, the switch, a stop text and a grammar end texts. */
    how.on_text = receive;
    received = (struct received){.model = model, .stop_after = 2};
    OK(ixc_generate(model, prompt, count, &how, &generation));
    CHECK(ixc_generation_end(generation) == IXC_END_CALLBACK && received.pieces == 2);
    char stop[64] = "";
    memcpy(stop, received.text + received.bytes - 2, 2);
    ixc_generation_free(generation);
    ixc_cancel *cancel;
    OK(ixc_cancel_new(&cancel));
    how.cancel = cancel;
    received = (struct received){.model = model, .cancel = cancel, .cancel_after = 2};
    OK(ixc_generate(model, prompt, count, &how, &generation));
    CHECK(ixc_generation_end(generation) == IXC_END_CANCELLED && received.pieces == 2);
    ixc_generation_free(generation);
    FAILS(ixc_generate(model, prompt, count, &how, &generation), IXC_INTERRUPTED, "cancelled");
    OK(ixc_cancel_set(cancel, 0));
    const char *stops[] = {"", stop};
    how.stop = stops, how.stop_count = 2, how.on_text = NULL;
    OK(ixc_generate(model, prompt, count, &how, &generation));
    CHECK(ixc_generation_end(generation) == IXC_END_STOP && strstr(ixc_generation_text(generation, NULL), stop) == NULL);
    ixc_generation_free(generation);
    ixc_cancel_free(cancel);
    how = (ixc_generate_options){.size = sizeof how, .sampler = sampler, .grammar = "root ::= \" yes\" | \" no\""};
    OK(ixc_generate(model, prompt, count, &how, &generation));
    print_text("grammar", generation);
    CHECK(ixc_generation_end(generation) == IXC_END_GRAMMAR);
    ixc_generation_free(generation);
    how.grammar = NULL, how.json_schema = "{\"enum\": [1, 2]}";
    OK(ixc_generate(model, prompt, count, &how, &generation));
    print_text("schema", generation);
    ixc_generation_free(generation);

    how.grammar = "root ::= (";
    FAILS(ixc_generate(model, prompt, count, &how, &generation), IXC_USAGE, "set only one");
    how.json_schema = NULL;
    CHECK(ixc_generate(model, prompt, count, &how, &generation) == IXC_DATA && generation == NULL);
    how.grammar = NULL, how.json_schema = "{";
    FAILS(ixc_generate(model, prompt, count, &how, &generation), IXC_USAGE, "not JSON");
    how.json_schema = NULL, how.flags = IXC_ADD_BOS;
    FAILS(ixc_generate(model, prompt, count, &how, &generation), IXC_USAGE, "are not defined for this function");
    how.flags = 0, how.reserved = 1;
    FAILS(ixc_generate(model, prompt, count, &how, &generation), IXC_USAGE, "reserved");
    how.reserved = 0, how.stop_count = 1;
    FAILS(ixc_generate(model, prompt, count, &how, &generation), IXC_USAGE, "stop is NULL");
    FAILS(ixc_generate(model, prompt, 0, NULL, &generation), IXC_DATA, "the input has no tokens");
    FAILS(ixc_generate(model, NULL, 4, NULL, &generation), IXC_USAGE, "prompt is NULL");
    uint32_t wrong = UINT32_MAX;
    FAILS(ixc_generate(model, &wrong, 1, NULL, &generation), IXC_DATA, "4294967295");
    CHECK(ixc_generation_text(NULL, NULL) == NULL && ixc_generation_end(NULL) == -1);
    ixc_generation_free(NULL);

    /* Files that are no states are neither read nor replaced. */
    snprintf(path, sizeof path, "%s/other", folder);
    FILE *other = fopen(path, "w");
    CHECK(other != NULL && fputs("other", other) >= 0 && fclose(other) == 0);
    CHECK(ixc_state_load(model, path) == IXC_DATA);
    FAILS(ixc_state_save(model, path), IXC_USAGE, "other");
    snprintf(path, sizeof path, "%s/no/such/folder", folder);
    CHECK(ixc_state_load(model, path) == IXC_NO_INPUT && ixc_state_save(model, path) != IXC_OK);
    ixc_sampler_free(sampler);
}

static void check_steps(ixc_model *model, const char *folder) {
    ixc_facts facts = {.size = sizeof facts};
    OK(ixc_model_facts(model, &facts));
    CHECK(facts.sequences == 2);
    uint32_t prompt[64], tokens[64];
    size_t count = tokenize(model, PROMPT, prompt, 64), needed, row = facts.vocabulary;
    float *logits = malloc(2 * row * sizeof *logits), *again = malloc(row * sizeof *again);
    ixc_sequence *one, *two, *three;
    OK(ixc_sequence_new(model, &one));
    OK(ixc_sequence_new(model, &two));
    FAILS(ixc_sequence_new(model, &three), IXC_USAGE, "set a larger `sequences`");

    uint32_t outputs[] = {0, (uint32_t)count - 1};
    ixc_addition addition = {one, prompt, count, outputs, 2};
    FAILS(ixc_step(model, &addition, 1, logits, row, &needed), IXC_BUFFER, "room for");
    CHECK(needed == 2 * row);
    FAILS(ixc_step(model, &addition, 1, NULL, 0, &needed), IXC_BUFFER, "room for");
    OK(ixc_sequence_tokens(one, tokens, 64, &needed));
    CHECK(needed == 0);
    OK(ixc_step(model, &addition, 1, logits, 2 * row, &needed));
    CHECK(needed == 2 * row);
    print_bits("logits", logits, needed);

    /* A copy, a saved sequence and a truncated sequence continue with the same bits. */
    char path[1024];
    snprintf(path, sizeof path, "%s/sequence", folder);
    OK(ixc_sequence_save(one, path));
    uint32_t next = prompt[0], first = 0;
    addition = (ixc_addition){one, &next, 1, &first, 1};
    OK(ixc_step(model, &addition, 1, logits, row, &needed));
    print_bits("next", logits, row);
    OK(ixc_sequence_truncate(one, count, &needed));
    CHECK(needed == count);
    OK(ixc_sequence_copy(one, two, count, &needed));
    CHECK(needed == count);
    addition.sequence = two;
    OK(ixc_step(model, &addition, 1, again, row, &needed));
    CHECK(memcmp(logits, again, row * sizeof *again) == 0);
    OK(ixc_sequence_load(two, path));
    OK(ixc_sequence_tokens(two, tokens, 64, &needed));
    CHECK(needed == count && memcmp(tokens, prompt, count * sizeof *tokens) == 0);
    OK(ixc_step(model, &addition, 1, again, row, &needed));
    CHECK(memcmp(logits, again, row * sizeof *again) == 0);

    addition.outputs = &next, next = 7;
    CHECK(ixc_step(model, &addition, 1, logits, row, &needed) == IXC_DATA);
    addition.outputs = &first, next = UINT32_MAX;
    FAILS(ixc_step(model, &addition, 1, logits, row, &needed), IXC_DATA, "4294967295");
    addition.sequence = NULL;
    FAILS(ixc_step(model, &addition, 1, logits, row, &needed), IXC_USAGE, "additions[0].sequence is NULL");
    addition.sequence = two, addition.count = 0;
    CHECK(ixc_step(model, &addition, 1, logits, row, &needed) == IXC_DATA);
    FAILS(ixc_step(model, NULL, 1, logits, row, &needed), IXC_USAGE, "additions is NULL");
    CHECK(ixc_step(model, NULL, 0, logits, row, &needed) == IXC_DATA);
    FAILS(ixc_sequence_copy(one, one, 1, &needed), IXC_DATA, "");
    FAILS(ixc_sequence_load(two, "/no/such/file"), IXC_NO_INPUT, "/no/such/file");

    /* A freed sequence makes room for another one. */
    ixc_sequence_free(two);
    ixc_sequence_free(NULL);
    OK(ixc_sequence_new(model, &three));
    OK(ixc_sequence_tokens(three, NULL, 0, &needed));
    CHECK(needed == 0);
    ixc_sequence_free(three);
    ixc_sequence_free(one);
    free(logits);
    free(again);
}

static void check_chats(ixc_model *model) {
    ixc_chat *chat;
    FAILS(ixc_chat_new(NULL, NULL, &chat), IXC_USAGE, "model is NULL");
    ixc_chat_options form = {.size = sizeof form, .chat_template = "chatml"};
    OK(ixc_chat_new(model, &form, &chat));
    FAILS(ixc_chat_remove_last(chat), IXC_USAGE, "no message");
    ixc_message message = {.size = sizeof message, .content = "Hello"};
    FAILS(ixc_chat_add(chat, &message), IXC_USAGE, "role is NULL");
    message.role = "user";
    OK(ixc_chat_add(chat, &message));
    FAILS(ixc_chat_set_tools(chat, "{}"), IXC_USAGE, "tools is not a JSON array");
    FAILS(ixc_chat_set_tools(chat, "[{}]"), IXC_USAGE, "tools is not a JSON array");
    message.tool_calls = "[{}]";
    FAILS(ixc_chat_add(chat, &message), IXC_USAGE, "tool_calls");
    FAILS(ixc_chat_set_variable(chat, "enable_thinking", "{"), IXC_DATA, "JSON");
    OK(ixc_chat_set_variable(chat, "enable_thinking", "false"));
    size_t plain, with_tools;
    OK(ixc_chat_tokens(chat, NULL, 0, &plain));
    OK(ixc_chat_set_tools(chat, "[{\"type\": \"function\", \"function\": {\"name\": \"look\"}}]"));
    OK(ixc_chat_tokens(chat, NULL, 0, &with_tools));
    CHECK(with_tools > plain);

    /* The answer is forced to be a call, which the next prompt contains with its result. */
    ixc_sampler *sampler = greedy();
    struct received received = {.model = model};
    ixc_generate_options how = {.size = sizeof how, .sampler = sampler, .on_text = receive, .user = &received,
                                .grammar = "root ::= \"{\\\"tool_call\\\":\\n{\\\"name\\\": \\\"look\\\", "
                                           "\\\"arguments\\\": {\\\"at\\\": 1}}\\n}\""};
    ixc_generation *answer;
    OK(ixc_chat_generate(chat, &how, &answer));
    ixc_call call = {.size = sizeof call};
    CHECK(ixc_generation_call_count(answer) == 1);
    OK(ixc_generation_call(answer, 0, &call));
    CHECK(strcmp(call.name, "look") == 0 && strcmp(call.arguments, "{\"at\": 1}") == 0 && strlen(call.id) > 0);
    CHECK(strcmp(ixc_generation_text(answer, NULL), "") == 0 && strcmp(received.text, "look{\"at\": 1}") == 0);
    CHECK(strcmp(ixc_generation_reasoning(answer, NULL), "") == 0);
    message = (ixc_message){.size = sizeof message, .role = "tool", .content = "a door", .tool_call_id = call.id};
    OK(ixc_chat_add(chat, &message));
    ixc_generation_free(answer);
    how = (ixc_generate_options){.size = sizeof how, .sampler = sampler, .max_tokens = 8};
    OK(ixc_chat_generate(chat, &how, &answer));
    print_text("answer", answer);
    ixc_generation_free(answer);
    OK(ixc_chat_remove_last(chat));
    ixc_sampler_free(sampler);
    ixc_chat_free(chat);
    ixc_chat_free(NULL);
}

static void check_embeddings(const char *path, const char *target) {
    ixc_model_options options = {.size = sizeof options, .target = target, .threads = 2};
    ixc_embedder *embedder;
    OK(ixc_embedder_open(path, &options, &embedder));
    size_t width = ixc_embedder_width(embedder), needed;
    float *vectors = malloc(2 * width * sizeof *vectors);
    const char *texts[] = {PROMPT, "A trait"};
    OK(ixc_embed(embedder, texts, NULL, 2, NULL, NULL, 0, &needed));
    CHECK(needed == 2 * width);
    FAILS(ixc_embed(embedder, texts, NULL, 2, NULL, vectors, width, &needed), IXC_BUFFER, "room for");
    OK(ixc_embed(embedder, texts, NULL, 2, NULL, vectors, 2 * width, &needed));
    print_bits("vectors", vectors, needed);
    size_t lengths[] = {strlen(PROMPT), 3};
    OK(ixc_embed(embedder, texts, lengths, 2, NULL, vectors, 2 * width, &needed));
    texts[1] = NULL;
    FAILS(ixc_embed(embedder, texts, NULL, 2, NULL, vectors, 2 * width, &needed), IXC_USAGE, "texts[1] is NULL");
    ixc_cancel *cancel;
    OK(ixc_cancel_new(&cancel));
    OK(ixc_cancel_set(cancel, 1));
    FAILS(ixc_embed(embedder, texts, NULL, 1, cancel, vectors, width, &needed), IXC_INTERRUPTED, "cancelled");
    ixc_cancel_free(cancel);
    OK(ixc_embed(embedder, texts, NULL, 1, NULL, vectors, width, &needed));
    CHECK(ixc_embedder_width(NULL) == 0);
    free(vectors);
    ixc_embedder_close(embedder);
    ixc_embedder_close(NULL);
}

/* A generation on a thread of its own, which another thread ends. */
static void *generate_until_cancelled(void *user) {
    struct received *to = user;
    uint32_t token = 5;
    ixc_generate_options how = {.size = sizeof how, .cancel = to->cancel, .flags = IXC_IGNORE_END};
    ixc_generation *generation = NULL;
    ixc_status status = ixc_generate(to->model, &token, 1, &how, &generation);
    CHECK(status == IXC_INTERRUPTED || (status == IXC_OK && ixc_generation_end(generation) >= IXC_END_CONTEXT));
    /* The error of this thread is its own. */
    CHECK((strcmp(ixc_error(), "") == 0) == (status == IXC_OK));
    ixc_generation_free(generation);
    return NULL;
}

static void check_threads(ixc_model *model) {
    ixc_cancel *cancel;
    OK(ixc_cancel_new(&cancel));
    struct received shared = {.model = model, .cancel = cancel};
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, generate_until_cancelled, &shared) == 0);
    uint32_t tokens[64];
    CHECK(tokenize(model, PROMPT, tokens, 64) > 0);
    OK(ixc_cancel_set(cancel, 1));
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    ixc_cancel_free(cancel);
}

int main(int count, char **arguments) {
    if (count != 4 || ixc_abi_version() != IXC_ABI_VERSION || strcmp(ixc_error(), "") != 0) return 2;
    const char *path = arguments[1], *target = arguments[2], *folder = arguments[3];
    CHECK(strchr(ixc_library_version(), '.') != NULL);
    FAILS(ixc_set_log(6, count_message, &messages), IXC_USAGE, "no log level 6");
    OK(ixc_set_log(IXC_LOG_DEBUG, count_message, &messages));
    ixc_model_options options = {.size = sizeof options, .target = target, .threads = 2, .context = 512, .sequences = 2};
    ixc_model *model;
    OK(ixc_model_open(path, &options, &model));
    CHECK(messages > 0 && strcmp(ixc_model_target(model), target) == 0);
    OK(ixc_set_log(0, NULL, NULL));
    int before = messages;

    check_models(path, model);
    check_texts(model);
    check_samplers(model);
    check_generation(model, folder);
    check_steps(model, folder);
    check_chats(model);
    check_embeddings(path, target);
    check_threads(model);
    CHECK(messages == before);

    /* Handles may be freed in any order. */
    ixc_sequence *sequence;
    OK(ixc_sequence_new(model, &sequence));
    ixc_model_close(model);
    size_t length;
    OK(ixc_sequence_tokens(sequence, NULL, 0, &length));
    ixc_sequence_free(sequence);
    return 0;
}
