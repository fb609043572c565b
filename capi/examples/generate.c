/* Continues a text, and prints it while it is generated: generate MODEL PROMPT [TARGET]. */
#include <stdio.h>
#include <stdlib.h>

#include <ixc.h>

static int print_piece(void *user, const ixc_piece *piece) {
    (void)user;
    fwrite(piece->text, 1, piece->bytes, stdout);
    fflush(stdout);
    return 0;
}

static int failed(const char *what) {
    fprintf(stderr, "%s: %s: %s\n", what, ixc_status_name(ixc_error_status()), ixc_error());
    return EXIT_FAILURE;
}

int main(int count, char **arguments) {
    if (count < 3) {
        fprintf(stderr, "usage: generate MODEL PROMPT [TARGET]\n");
        return 2;
    }
    if (ixc_abi_version() != IXC_ABI_VERSION) {
        fprintf(stderr, "the library has version %u; expected %d\n", ixc_abi_version(), IXC_ABI_VERSION);
        return EXIT_FAILURE;
    }
    ixc_model_options options = {.size = sizeof options, .target = count > 3 ? arguments[3] : NULL};
    ixc_model *model;
    if (ixc_model_open(arguments[1], &options, &model) != IXC_OK) return failed("open");

    /* The first call asks for the number of tokens. */
    uint32_t flags = IXC_ADD_BOS | IXC_PARSE_SPECIAL;
    size_t tokens;
    if (ixc_tokenize(model, arguments[2], IXC_TERMINATED, flags, NULL, 0, &tokens) != IXC_OK) return failed("tokenize");
    uint32_t *prompt = malloc(tokens * sizeof *prompt);
    if (ixc_tokenize(model, arguments[2], IXC_TERMINATED, flags, prompt, tokens, &tokens) != IXC_OK)
        return failed("tokenize");

    ixc_sampler *sampler;
    if (ixc_sampler_new(&sampler) != IXC_OK || ixc_sampler_set(sampler, "temperature", 0) != IXC_OK)
        return failed("sampler");
    ixc_generate_options how = {.size = sizeof how, .sampler = sampler, .max_tokens = 24, .on_text = print_piece};
    ixc_generation *generation;
    printf("%s", arguments[2]);
    if (ixc_generate(model, prompt, tokens, &how, &generation) != IXC_OK) return failed("generate");

    ixc_stats stats = {.size = sizeof stats};
    if (ixc_generation_stats(generation, &stats) != IXC_OK) return failed("stats");
    printf("\n");
    fprintf(stderr, "%zu tokens, %.1f tokens/s\n", stats.generated_tokens,
            (double)stats.generated_tokens / stats.generation_seconds);
    ixc_generation_free(generation);
    ixc_sampler_free(sampler);
    ixc_model_close(model);
    free(prompt);
    return EXIT_SUCCESS;
}
