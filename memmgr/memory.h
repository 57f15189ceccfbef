/* The kernel's side of a region: a memfd, its seals, its pages. Private to memmgr/, used by memmgr
 * and by its clients, on any thread.
 *
 * A descriptor that came from a peer is checked (mm_memory_check) before anything is mapped: size
 * and seals, so that no later truncation can turn a read into SIGBUS. Populating takes about 7 us a
 * page; it is for worker threads where the region is large. */
#ifndef MEMMGR_MEMORY_H
#define MEMMGR_MEMORY_H

#include "common/err.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A lease never changes its size and never gets another seal. */
#define MM_SEALS_LEASE (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
/* Weights while they are written: sealing against writing is still to come. */
#define MM_SEALS_WRITING (F_SEAL_SHRINK | F_SEAL_GROW)
#define MM_SEALS_SEALED  (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)

/* bytes rounded up to whole pages; false on overflow. */
bool mm_memory_round(size_t bytes, size_t *ret_bytes);

/* A memfd of whole pages (0 is allowed) with these seals and no pages yet. Cheap. */
CM_MUST_CHECK enum cm_err mm_memory_create(size_t bytes, int seals, struct cm_error *err,
                                           int *ret_fd);

/* Allocates and zeroes every page. Slow. CM_NOMEM where the kernel has none left. */
CM_MUST_CHECK enum cm_err mm_memory_populate(int fd, size_t bytes, struct cm_error *err);

/* Maps the memory for reading, page tables empty: the first touch of each 64 KiB costs a fault of
 * some microseconds. Cheap. ret_base is NULL for 0 bytes. */
CM_MUST_CHECK enum cm_err mm_memory_map_bare(int fd, size_t bytes, struct cm_error *err,
                                             void **ret_base);

/* Maps the memory with this process's page tables filled. Slow. ret_base is NULL for 0 bytes. */
CM_MUST_CHECK enum cm_err mm_memory_map(int fd, size_t bytes, bool writable, struct cm_error *err,
                                        void **ret_base);
void mm_memory_unmap(void *base, size_t bytes);

/* Another descriptor for the same memory that cannot write. */
CM_MUST_CHECK enum cm_err mm_memory_readonly(int fd, struct cm_error *err, int *ret_fd);

/* Adds seals and reads them back. CM_PRECONDITION: someone still has it mapped writable. */
CM_MUST_CHECK enum cm_err mm_memory_seal(int fd, int seals, struct cm_error *err);

/* Seals of a descriptor; -1 for what is no memfd. */
int mm_memory_seals(int fd);

struct mm_memory_id {
    uint64_t device, inode;
};

/* CM_CORRUPT unless fd is a memfd of exactly bytes, has all of seals, and may write if and only if
 * writable. */
CM_MUST_CHECK enum cm_err mm_memory_check(int fd, size_t bytes, int seals, bool writable,
                                          struct cm_error *err, struct mm_memory_id *ret_id);

/* What the kernel has allocated for it; 0 if fd is bad. */
uint64_t mm_memory_resident(int fd);

#endif
