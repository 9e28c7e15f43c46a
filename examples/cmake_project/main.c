/* A layer of a network, a product of any size, and a sum over a batch, by a library of kernels. */
#include <smallmm.h>
#include <stdio.h>
#include <stdlib.h>

static void *memory(int64_t bytes)
{
    void *const found = aligned_alloc(64, ((size_t)bytes + 63) / 64 * 64 + 64);
    if (!found)
        abort();
    return found;
}

/* C = A B of any size: the kernel is asked for once, and called as often as there are such products. */
static void product(int64_t m, int64_t n, int64_t k)
{
    smallmm_sgemm_kernel *const kernel = smallmm_sgemm(m, n, k);
    float *a = memory(m * k * 4), *b = memory(k * n * 4), *c = memory(m * n * 4);
    for (int64_t i = 0; i < m * k; i++)
        a[i] = (float)(i % 5);
    for (int64_t i = 0; i < k * n; i++)
        b[i] = (float)(i % 3);
    kernel(a, b, c, m, n, k);
    printf("%d x %d x %d: the last element is %g\n", (int)m, (int)n, (int)k, c[m * n - 1]);
    free(a), free(b), free(c);
}

/* The weights are packed once, in the format of the target in use. */
static void layer(int64_t m)
{
    uint8_t *pixels = memory(smallmm_layer_a_bytes(m)), *out = memory(smallmm_layer_d_bytes(m));
    void *packed = memory(smallmm_layer_pack_b_packed_bytes());
    int8_t weights[64 * 64];
    float scale[64], bias[64];
    for (int i = 0; i < 64 * 64; i++)
        weights[i] = (int8_t)(i % 7 - 3);
    for (int i = 0; i < 64; i++)
        scale[i] = 0.001f, bias[i] = 0.5f;
    for (int64_t i = 0; i < m * 64; i++)
        pixels[i] = (uint8_t)(i % 251);
    smallmm_layer_pack_b(weights, packed, 64);
    smallmm_layer(pixels, packed, out, scale, bias, m);
    printf("layer: %d %d %d ...\n", out[0], out[1], out[2]);
    free(pixels), free(out), free(packed);
}

/* Scratch memory is the caller's, and as large as the target in use wants it. */
static void batch(int64_t count)
{
    uint16_t *a = memory(smallmm_batch_a_bytes(count)), *b = memory(smallmm_batch_b_bytes(count));
    float c[16 * 16];
    void *scratch = memory(smallmm_batch_scratch_bytes(count));
    for (int64_t i = 0; i < count * 16 * 32; i++)
        a[i] = b[i] = 0x3f80; /* the bits of 1 in bf16 */
    smallmm_batch(a, b, c, count, scratch);
    printf("batch: each element is %g\n", c[0]);
    free(a), free(b), free(scratch);
}

int main(void)
{
    if (smallmm_status() != SMALLMM_OK) {
        fprintf(stderr, "smallmm: %s\n", smallmm_status_text(smallmm_status()));
        return 1;
    }
    printf("smallmm %s on %s\n", smallmm_version(), smallmm_target());
    product(32, 32, 32);
    product(7, 19, 300);
    layer(10);
    batch(5);
    return 0;
}
