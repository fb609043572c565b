/* Cuts a mapped model while it generates: cut MODEL TARGET. The generation and all later ones must
 * fail. Prints the status and the error of each. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <ixc.h>

static int cut(void *path, const ixc_piece *piece) {
    (void)piece;
    if (truncate(path, 4096) != 0) exit(EXIT_FAILURE);
    return 0;
}

int main(int count, char **arguments) {
    if (count != 3) return EXIT_FAILURE;
    ixc_model_options options = {.size = sizeof options, .target = arguments[2], .threads = 2};
    ixc_model *model;
    if (ixc_model_open(arguments[1], &options, &model) != IXC_OK) return EXIT_FAILURE;
    ixc_sampler *sampler;
    if (ixc_sampler_new(&sampler) != IXC_OK) return EXIT_FAILURE;
    uint32_t prompt[] = {1, 2, 3};
    for (int i = 0; i < 2; i++) {
        ixc_generate_options how = {
            .size = sizeof how, .sampler = sampler, .max_tokens = 100, .flags = IXC_IGNORE_END, .on_text = cut, .user = arguments[1]};
        ixc_generation *generation;
        if (ixc_generate(model, prompt, 3, &how, &generation) == IXC_OK) return EXIT_FAILURE;
        printf("%s: %s\n", ixc_status_name(ixc_error_status()), ixc_error());
    }
    ixc_sampler_free(sampler);
    ixc_model_close(model);
    return EXIT_SUCCESS;
}
