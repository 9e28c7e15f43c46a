/* A product of ggml's (llama.cpp's kernels) as one call: weights, repacked for this CPU where it can be,
 * and one thread. It needs ggml's headers and shared libraries; see TILEWRIGHT_GGML in README.md. */
#include <ggml.h>
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <stdlib.h>
#include <string.h>

struct bench_ggml {
    ggml_backend_t backend;
    struct ggml_context *weights, *rows;
    ggml_backend_buffer_t held, room;
    struct ggml_cgraph *graph;
    struct ggml_tensor *product;
    int repacked;
};

/* The type of buffers in which the CPU's weights are repacked; NULL where there is none. */
static ggml_backend_buffer_type_t repacking(void)
{
    ggml_backend_reg_t cpu = ggml_backend_cpu_reg();
    ggml_backend_dev_get_extra_bufts_t extra =
        (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(cpu, "ggml_backend_dev_get_extra_bufts");
    if (extra == NULL)
        return NULL;
    ggml_backend_buffer_type_t *found = extra(ggml_backend_reg_dev_get(cpu, 0));
    for (; found != NULL && *found != NULL; found++)
        if (strcmp(ggml_backend_buft_name(*found), "CPU_REPACK") == 0)
            return *found;
    return NULL;
}

static struct ggml_context *context(void)
{
    struct ggml_init_params parameters = { .mem_size = 1 << 20, .mem_buffer = NULL, .no_alloc = true };
    return ggml_init(parameters);
}

/* n rows of k weights in a container of ggml's, `bytes` of them, times m rows of f32 of k. */
struct bench_ggml *bench_ggml_make(const char *type, int64_t m, int64_t n, int64_t k, const void *data, size_t bytes,
                                   const float *a)
{
    int number = 0;
    while (number < GGML_TYPE_COUNT && strcmp(ggml_type_name((enum ggml_type)number), type) != 0)
        number++;
    if (number == GGML_TYPE_COUNT)
        return NULL;
    struct bench_ggml *made = calloc(1, sizeof *made);
    made->backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(made->backend, 1);
    struct ggml_tensor *w = NULL;
    for (int plain = 0; plain < 2 && made->held == NULL; plain++) {
        ggml_backend_buffer_type_t kind = plain ? ggml_backend_cpu_buffer_type() : repacking();
        if (kind == NULL)
            continue;
        made->weights = context();
        w = ggml_new_tensor_2d(made->weights, (enum ggml_type)number, k, n);
        made->held = ggml_backend_alloc_ctx_tensors_from_buft(made->weights, kind);
        made->repacked = !plain;
        if (!plain && w->extra == NULL) {
            ggml_backend_buffer_free(made->held);
            ggml_free(made->weights);
            made->held = NULL;
        }
    }
    if (made->held == NULL || ggml_nbytes(w) != bytes)
        return NULL;
    ggml_backend_tensor_set(w, data, 0, bytes);
    made->rows = context();
    struct ggml_tensor *x = ggml_new_tensor_2d(made->rows, GGML_TYPE_F32, k, m);
    made->product = ggml_mul_mat(made->rows, w, x);
    made->graph = ggml_new_graph(made->rows);
    ggml_build_forward_expand(made->graph, made->product);
    made->room = ggml_backend_alloc_ctx_tensors(made->rows, made->backend);
    ggml_backend_tensor_set(x, a, 0, (size_t)m * k * sizeof(float));
    return made;
}

int bench_ggml_run(struct bench_ggml *made)
{
    return ggml_backend_graph_compute(made->backend, made->graph) != GGML_STATUS_SUCCESS;
}

int bench_ggml_repacked(const struct bench_ggml *made)
{
    return made->repacked;
}

void bench_ggml_read(const struct bench_ggml *made, float *c)
{
    ggml_backend_tensor_get(made->product, c, 0, ggml_nbytes(made->product));
}

void bench_ggml_free(struct bench_ggml *made)
{
    ggml_backend_buffer_free(made->held);
    ggml_backend_buffer_free(made->room);
    ggml_free(made->weights);
    ggml_free(made->rows);
    ggml_backend_free(made->backend);
    free(made);
}
