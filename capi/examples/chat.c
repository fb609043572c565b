/* Answers each line of standard input: chat MODEL [TEMPLATE [TARGET]]. A tool tells the time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ixc.h>

static const char *TOOLS =
    "[{\"type\": \"function\", \"function\": {\"name\": \"time\", \"description\": \"Returns the time of day.\","
    " \"parameters\": {\"type\": \"object\", \"properties\": {}}}}]";

static int print_piece(void *user, const ixc_piece *piece) {
    (void)user;
    if (piece->part == IXC_CONTENT) fwrite(piece->text, 1, piece->bytes, stdout);
    return 0;
}

static int failed(const char *what) {
    fprintf(stderr, "%s: %s: %s\n", what, ixc_status_name(ixc_error_status()), ixc_error());
    return EXIT_FAILURE;
}

static ixc_status say(ixc_chat *chat, const char *role, const char *content, const char *call) {
    ixc_message message = {.size = sizeof message, .role = role, .content = content, .tool_call_id = call};
    return ixc_chat_add(chat, &message);
}

int main(int count, char **arguments) {
    if (count < 2) {
        fprintf(stderr, "usage: chat MODEL [TEMPLATE [TARGET]]\n");
        return 2;
    }
    ixc_model_options options = {.size = sizeof options, .target = count > 3 ? arguments[3] : NULL};
    ixc_model *model;
    if (ixc_model_open(arguments[1], &options, &model) != IXC_OK) return failed("open");
    ixc_chat_options form = {.size = sizeof form, .chat_template = count > 2 ? arguments[2] : NULL};
    ixc_chat *chat;
    if (ixc_chat_new(model, &form, &chat) != IXC_OK) return failed("chat");
    if (ixc_chat_set_tools(chat, TOOLS) != IXC_OK) return failed("tools");
    if (say(chat, "system", "Be brief.", NULL) != IXC_OK) return failed("system");

    ixc_sampler *sampler;
    if (ixc_sampler_new(&sampler) != IXC_OK || ixc_sampler_set(sampler, "temperature", 0) != IXC_OK)
        return failed("sampler");
    ixc_generate_options how = {.size = sizeof how, .sampler = sampler, .max_tokens = 16, .on_text = print_piece};
    char line[4096];
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (say(chat, "user", line, NULL) != IXC_OK) return failed("user");
        for (size_t calls = 1; calls > 0;) {
            ixc_generation *answer;
            if (ixc_chat_generate(chat, &how, &answer) != IXC_OK) return failed("answer");
            calls = ixc_generation_call_count(answer);
            for (size_t number = 0; number < calls; number++) {
                ixc_call call = {.size = sizeof call};
                if (ixc_generation_call(answer, number, &call) != IXC_OK) return failed("call");
                const char *result = strcmp(call.name, "time") == 0 ? "noon" : "there is no such tool";
                if (say(chat, "tool", result, call.id) != IXC_OK) return failed("tool");
            }
            ixc_generation_free(answer);
        }
        printf("\n");
    }
    ixc_sampler_free(sampler);
    ixc_chat_free(chat);
    ixc_model_close(model);
    return EXIT_SUCCESS;
}
