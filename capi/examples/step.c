/* Computes two continuations of a prompt in shared steps: step MODEL PROMPT [TARGET]. The prompt is
 * computed once. The first continuation is greedy, and the second is drawn. */
#include <stdio.h>
#include <stdlib.h>

#include <ixc.h>

#define STEPS 12

static int failed(const char *what) {
    fprintf(stderr, "%s: %s: %s\n", what, ixc_status_name(ixc_error_status()), ixc_error());
    return EXIT_FAILURE;
}

int main(int count, char **arguments) {
    if (count < 3) {
        fprintf(stderr, "usage: step MODEL PROMPT [TARGET]\n");
        return 2;
    }
    ixc_model_options options = {.size = sizeof options, .sequences = 2, .target = count > 3 ? arguments[3] : NULL};
    ixc_model *model;
    if (ixc_model_open(arguments[1], &options, &model) != IXC_OK) return failed("open");
    ixc_facts facts = {.size = sizeof facts};
    if (ixc_model_facts(model, &facts) != IXC_OK) return failed("facts");

    uint32_t *prompt = malloc(facts.context * sizeof *prompt);
    size_t tokens;
    if (ixc_tokenize(model, arguments[2], IXC_TERMINATED, IXC_ADD_BOS | IXC_PARSE_SPECIAL, prompt, facts.context,
                     &tokens) != IXC_OK)
        return failed("tokenize");

    ixc_sequence *sequences[2];
    ixc_sampler *samplers[2];
    for (int i = 0; i < 2; i++) {
        if (ixc_sequence_new(model, &sequences[i]) != IXC_OK) return failed("sequence");
        if (ixc_sampler_new(&samplers[i]) != IXC_OK || ixc_sampler_set_seed(samplers[i], 7) != IXC_OK)
            return failed("sampler");
    }
    if (ixc_sampler_set(samplers[0], "temperature", 0) != IXC_OK) return failed("temperature");

    /* The prompt, in parts that fit in a step. Only the last token needs logits. */
    size_t row = facts.vocabulary, needed;
    float *logits = malloc(2 * row * sizeof *logits);
    for (size_t done = 0, part; done < tokens; done += part) {
        part = tokens - done < facts.max_step ? tokens - done : facts.max_step;
        uint32_t last = (uint32_t)part - 1;
        ixc_addition addition = {sequences[0], prompt + done, part, &last, done + part == tokens};
        if (ixc_step(model, &addition, 1, logits, row, &needed) != IXC_OK) return failed("prompt");
    }
    size_t copied;
    if (ixc_sequence_copy(sequences[0], sequences[1], tokens, &copied) != IXC_OK) return failed("copy");
    if (copied != tokens) {
        fprintf(stderr, "this model's states cannot be copied at every position\n");
        return EXIT_FAILURE;
    }
    for (size_t i = 0; i < row; i++) logits[row + i] = logits[i];

    const uint32_t first = 0;
    for (int step = 0; step < STEPS; step++) {
        uint32_t next[2];
        ixc_addition additions[2];
        for (int i = 0; i < 2; i++) {
            if (ixc_sampler_sample(samplers[i], model, logits + (size_t)i * row, row, &next[i]) != IXC_OK)
                return failed("sample");
            additions[i] = (ixc_addition){sequences[i], &next[i], 1, &first, 1};
        }
        if (ixc_step(model, additions, 2, logits, 2 * row, &needed) != IXC_OK) return failed("step");
    }
    for (int i = 0; i < 2; i++) {
        size_t length, bytes;
        uint32_t *all = malloc((tokens + STEPS) * sizeof *all);
        if (ixc_sequence_tokens(sequences[i], all, tokens + STEPS, &length) != IXC_OK) return failed("tokens");
        if (ixc_detokenize(model, all, length, IXC_AT_START, NULL, 0, &bytes) != IXC_OK) return failed("length");
        char *text = malloc(bytes + 1);
        if (ixc_detokenize(model, all, length, IXC_AT_START, text, bytes + 1, &bytes) != IXC_OK) return failed("text");
        printf("%s\n", text);
        free(text);
        free(all);
        ixc_sampler_free(samplers[i]);
        ixc_sequence_free(sequences[i]);
    }
    ixc_model_close(model);
    free(prompt);
    free(logits);
    return EXIT_SUCCESS;
}
