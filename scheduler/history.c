/* Measured batch times and predictions from them. Pure. */
#include "scheduler/history.h"

#include <stdbool.h>

#define OUTLIER_FACTOR 4u

/* 1 -> 0, 2 -> 1, 3-4 -> 2, 5-8 -> 3 ... */
static unsigned class_of(uint32_t rows)
{
    unsigned class = 0;
    while (class + 1 < SD_ROW_CLASSES && (1u << class) < rows)
        class ++;
    return class;
}

void sd_history_add(struct sd_history *history, uint32_t rows, uint64_t elapsed_ns)
{
    unsigned class = class_of(rows);
    uint64_t mean = history->classes[class].mean_ns;
    if (elapsed_ns == 0)
        elapsed_ns = 1; /* 0 means "never measured" */
    if (mean == 0) {
        history->classes[class].mean_ns = elapsed_ns;
        history->classes[class].deviation_ns = elapsed_ns / 2;
        return;
    }
    if (elapsed_ns / OUTLIER_FACTOR > mean)
        elapsed_ns = mean * OUTLIER_FACTOR;
    uint64_t deviation = history->classes[class].deviation_ns;
    uint64_t error = elapsed_ns > mean ? elapsed_ns - mean : mean - elapsed_ns;
    history->classes[class].deviation_ns = deviation - deviation / 8 + error / 8;
    mean = mean - mean / 8 + elapsed_ns / 8;
    history->classes[class].mean_ns = mean ? mean : 1;
}

static struct sd_prediction predict_class(const struct sd_history *history, unsigned class)
{
    uint64_t mean = history->classes[class].mean_ns;
    uint64_t spread = history->classes[class].deviation_ns * 2;
    struct sd_prediction out = {.mean_ns = mean, .high_ns = mean + spread};
    out.low_ns = spread < mean - mean / 4 ? mean - spread : mean / 4;
    return out;
}

struct sd_prediction sd_history_predict(const struct sd_history *history, uint32_t rows)
{
    unsigned class = class_of(rows);
    for (unsigned near = class + 1; near-- > 0;) {
        if (history->classes[near].mean_ns == 0)
            continue;
        struct sd_prediction out = predict_class(history, near);
        /* More rows take longer, at most in proportion; the low guess does not count on it. */
        out.mean_ns <<= class - near;
        out.high_ns <<= class - near;
        return out;
    }
    for (unsigned near = class + 1; near < SD_ROW_CLASSES; near++) {
        if (history->classes[near].mean_ns == 0)
            continue;
        struct sd_prediction out = predict_class(history, near);
        out.low_ns >>= near - class;
        return out;
    }
    return (struct sd_prediction){0};
}

void sd_history_doubt(struct sd_history *history)
{
    for (unsigned i = 0; i < SD_ROW_CLASSES; i++) {
        history->classes[i].mean_ns -= history->classes[i].mean_ns / 8;
        history->classes[i].deviation_ns -= history->classes[i].deviation_ns / 8;
    }
}
