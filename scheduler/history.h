/* How long batches took: the measured history of one bucket, by rows, and what it predicts.
 *
 * A mean and a mean deviation for each class of rows (1, 2, 3-4, 5-8, ... 65-128), moved by 1/8 of
 * each new measurement. Two predictions come out, for two questions that err on different sides:
 * "can this still make its deadline?" uses the low one, so that noise drops nobody; "must this
 * leave now to be in time?" uses the high one. Pure; the caller's thread. */
#ifndef SCHEDULER_HISTORY_H
#define SCHEDULER_HISTORY_H

#include <stdint.h>

#define SD_ROW_CLASSES 8

struct sd_history {
    struct {
        uint64_t mean_ns; /* 0: never measured */
        uint64_t deviation_ns;
    } classes[SD_ROW_CLASSES];
};

/* All 0 where nothing is known: nobody is dropped or hurried on a guess. */
struct sd_prediction {
    uint64_t low_ns;
    uint64_t mean_ns;
    uint64_t high_ns;
};

/* rows: at least 1. One measurement counts as at most four times the mean, so that a paused machine
 * does not poison the history. */
void sd_history_add(struct sd_history *history, uint32_t rows, uint64_t elapsed_ns);

/* From the class of rows, or else from the nearest measured class, scaled up by rows if that one is
 * smaller. */
struct sd_prediction sd_history_predict(const struct sd_history *history, uint32_t rows);

/* A request was dropped because of this history. Takes an eighth off: a history that is wrong, and
 * keeps itself from being measured again by dropping everything, heals. */
void sd_history_doubt(struct sd_history *history);

#endif
