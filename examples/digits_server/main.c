/* Serves a trained network: reads images from stdin, 64 pixels of 0 to 16 each, and prints digits.
 * The weights are in the library, and nothing here knows Python. */
#include <digits.h>
#include <stdio.h>
#include <stdlib.h>

enum { PIXELS = 64, CLASSES = 10, MOST = 32 }; /* images in one call */

int main(void)
{
    static float pixels[MOST * PIXELS], share[MOST * CLASSES];
    if (digits_status() != DIGITS_OK) {
        fprintf(stderr, "digits: %s\n", digits_status_text(digits_status()));
        return 1;
    }
    const int64_t bytes = digits_classes_scratch_bytes(MOST);
    void *const scratch = aligned_alloc(64, ((size_t)bytes + 63) / 64 * 64 + 64);
    if (!scratch)
        return 1;
    for (int64_t read = PIXELS * MOST; read == PIXELS * MOST;) {
        float pixel;
        for (read = 0; read < PIXELS * MOST && scanf("%f", &pixel) == 1; read++)
            pixels[read] = pixel / 16;
        const int64_t images = read / PIXELS;
        digits_classes(pixels, share, images, scratch);
        for (int64_t image = 0; image < images; image++) {
            int best = 0;
            for (int digit = 1; digit < CLASSES; digit++)
                if (share[image * CLASSES + digit] > share[image * CLASSES + best])
                    best = digit;
            printf("%d %.3f\n", best, share[image * CLASSES + best]);
        }
    }
    free(scratch);
    return 0;
}
