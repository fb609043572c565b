// Logits of llama.cpp at every position of a prompt, as f32 to a file: what compare.py asks for.
//
//     g++ -O1 -I llama.cpp/include -I llama.cpp/ggml/include llama_logits.cpp -o llama_logits -L build/bin -lllama -lggml -lggml-base
//     llama_logits MODEL.gguf OUT ID,ID,...

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "llama.h"

int main(int argc, char ** argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s MODEL OUT IDS\n", argv[0]);
        return 2;
    }
    std::vector<llama_token> ids;
    for (char * at = argv[3]; *at;) {
        ids.push_back(strtol(at, &at, 10));
        if (*at == ',') at++;
    }
    llama_backend_init();
    llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return 3;
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = ids.size() + 1;
    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    // Nothing is rounded but what products take.
    params.type_k = params.type_v = GGML_TYPE_F32;
    llama_context * context = llama_init_from_model(model, params);
    if (!context) return 4;
    llama_batch batch = llama_batch_init(ids.size(), 0, 1);
    for (size_t i = 0; i < ids.size(); i++) {
        batch.token[i] = ids[i];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = true;
    }
    batch.n_tokens = ids.size();
    if (llama_decode(context, batch)) return 5;
    const int width = llama_vocab_n_tokens(llama_model_get_vocab(model));
    FILE * out = fopen(argv[2], "wb");
    for (size_t i = 0; i < ids.size(); i++) {
        fwrite(llama_get_logits_ith(context, i), sizeof(float), width, out);
    }
    return fclose(out);
}
