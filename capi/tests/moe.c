/* Runs a model's experts through ixc.h. Prints results for the comparison with Rust, and checks the
 * properties that only C can see. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ixc.h"

#define ROWS 9

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, ixc_error());
    return 1;
}

/* Checks that a call failed with a message that contains these words. */
static int refused(int is_refused, const char *words) {
    if (is_refused && strstr(ixc_error(), words) != NULL) return 0;
    fprintf(stderr, "not refused with %s: %s\n", words, ixc_error());
    return 1;
}

int main(int count, char **arguments) {
    if (count != 2 || ixc_abi_version() != IXC_ABI_VERSION || strcmp(ixc_error(), "") != 0) return 2;
    ixc_options options = {"avx2", 0, 2, 0};
    ixc_moe *moe = ixc_moe_open(arguments[1], &options);
    if (moe == NULL) return failed("open");
    ixc_layer layers[64];
    int64_t all = ixc_moe_layers(moe, layers, 64);
    if (all < 1 || all > 64 || ixc_moe_layers(moe, NULL, 0) != all) return failed("layers");
    for (int64_t at = 0; at < all; at++) {
        ixc_layer of = layers[at];
        size_t numbers = (size_t)ROWS * of.width, slots = (size_t)ROWS * of.used;
        float *rows = malloc(numbers * sizeof *rows), *sums = malloc(numbers * sizeof *sums);
        uint16_t *halves = malloc(numbers * sizeof *halves);
        float *weights = malloc(slots * sizeof *weights);
        int32_t *ids = malloc(slots * sizeof *ids);
        for (size_t i = 0; i < numbers; i++) {
            /* bf16 represents small multiples of 1/8 exactly. */
            rows[i] = (float)((int)(i * 7 % 23) - 11) / 8.0f;
            uint32_t bits;
            memcpy(&bits, &rows[i], sizeof bits);
            halves[i] = (uint16_t)(bits >> 16);
        }
        for (size_t i = 0; i < slots; i++) {
            size_t row = i / of.used, slot = i % of.used;
            ids[i] = row % 3 == slot % 3 ? IXC_NO_EXPERT : (int32_t)((row + slot) % of.experts);
            weights[i] = (float)(1 + slot) / 4.0f;
        }
        ixc_job *one = ixc_moe_submit(moe, of.layer, IXC_F32, rows, ids, weights, ROWS);
        ixc_job *two = ixc_moe_submit(moe, of.layer, IXC_BF16, halves, ids, weights, ROWS);
        ixc_job *lost = ixc_moe_submit(moe, of.layer, IXC_F32, rows, ids, weights, ROWS);
        if (one == NULL || two == NULL || lost == NULL) return failed("submit");
        ixc_job_forget(lost);
        if (ixc_moe_sync(moe) != 0 || ixc_job_done(one) != 1) return failed("sync");
        if (ixc_job_wait(one, sums, numbers) != 0) return failed("wait");
        printf("%u", of.layer);
        for (size_t i = 0; i < numbers; i++) {
            uint32_t bits;
            memcpy(&bits, &sums[i], sizeof bits);
            printf(" %08x", bits);
        }
        printf("\n");
        float *same = malloc(numbers * sizeof *same);
        if (ixc_job_wait(two, same, numbers) != 0 || memcmp(same, sums, numbers * sizeof *same) != 0) return failed("bf16");
        ids[0] = (int32_t)of.experts;
        if (refused(ixc_moe_submit(moe, of.layer, IXC_F32, rows, ids, weights, ROWS) == NULL, "expected an expert from 0 to")) return 1;
        ids[0] = 0;
        weights[0] = NAN;
        if (refused(ixc_moe_submit(moe, of.layer, IXC_F32, rows, ids, weights, ROWS) == NULL, "finite")) return 1;
        weights[0] = 1.0f;
        ixc_job *small = ixc_moe_submit(moe, of.layer, IXC_F32, rows, ids, weights, ROWS);
        if (refused(ixc_job_wait(small, sums, numbers - 1) < 0, "room for")) return 1;
        ixc_job *none = ixc_moe_submit(moe, of.layer, IXC_F32, NULL, NULL, NULL, 0);
        if (none == NULL || ixc_job_wait(none, NULL, 0) != 0) return failed("no rows");
        free(rows), free(sums), free(halves), free(weights), free(ids), free(same);
    }
    if (refused(ixc_moe_submit(moe, 9999, IXC_F32, &all, NULL, NULL, 1) == NULL, "no routed experts")) return 1;
    if (refused(ixc_moe_submit(moe, layers[0].layer, (ixc_type)7, &all, NULL, NULL, 1) == NULL, "no element type 7")) return 1;
    if (refused(ixc_moe_submit(moe, layers[0].layer, IXC_F32, NULL, NULL, NULL, 1) == NULL, "rows is NULL")) return 1;
    if (refused(ixc_moe_submit(NULL, 0, IXC_F32, NULL, NULL, NULL, 0) == NULL, "moe is NULL")) return 1;
    if (refused(ixc_moe_open(NULL, NULL) == NULL, "path is NULL")) return 1;
    if (refused(ixc_moe_open("/no/such/model.gguf", NULL) == NULL, "/no/such/model.gguf")) return 1;
    options.target = "avx3";
    if (refused(ixc_moe_open(arguments[1], &options) == NULL, "targets are")) return 1;
    ixc_job_forget(NULL);
    ixc_moe_close(NULL);
    ixc_moe_close(moe);
    return 0;
}
