/* Compares texts with the first one by the cosine of their vectors: embed MODEL TARGET TEXT... */
#include <stdio.h>
#include <stdlib.h>

#include <ixc.h>

static int failed(const char *what) {
    fprintf(stderr, "%s: %s: %s\n", what, ixc_status_name(ixc_error_status()), ixc_error());
    return EXIT_FAILURE;
}

int main(int count, char **arguments) {
    if (count < 4) {
        fprintf(stderr, "usage: embed MODEL TARGET TEXT...\n");
        return 2;
    }
    const char *const *texts = (const char *const *)(arguments + 3);
    size_t number = (size_t)count - 3;
    ixc_model_options options = {.size = sizeof options, .target = arguments[2], .sequences = 4};
    ixc_embedder *embedder;
    if (ixc_embedder_open(arguments[1], &options, &embedder) != IXC_OK) return failed("open");
    size_t width = ixc_embedder_width(embedder), needed;
    float *vectors = malloc(number * width * sizeof *vectors);
    if (ixc_embed(embedder, texts, NULL, number, NULL, vectors, number * width, &needed) != IXC_OK)
        return failed("embed");
    for (size_t text = 0; text < number; text++) {
        /* Vectors of this model have length 1, so the dot product is the cosine. */
        double product = 0;
        for (size_t i = 0; i < width; i++) product += (double)vectors[i] * vectors[text * width + i];
        printf("%.4f %s\n", product, texts[text]);
    }
    free(vectors);
    ixc_embedder_close(embedder);
    return EXIT_SUCCESS;
}
