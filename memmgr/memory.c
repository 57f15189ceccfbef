/* memfd, seals and pages. Any thread; the slow calls say so in the header. */
#include "memmgr/memory.h"

#include "common/check.h"

#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Newer than the C library's headers: Linux 6.3. Kernels with vm.memfd_noexec=2 insist on it. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

bool mm_memory_round(size_t bytes, size_t *ret_bytes)
{
    return cm_size_align(bytes, page_bytes(), ret_bytes);
}

enum cm_err mm_memory_create(size_t bytes, int seals, struct cm_error *err, int *ret_fd)
{
    CM_ASSERT(bytes % page_bytes() == 0);
    /* The name is for people: /proc/PID/smaps shows it. Only weights wait for another seal. */
    const char *name = seals & F_SEAL_SEAL ? "ingot-lease" : "ingot-weights";
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return cm_fail_errno(err, errno, "cannot create a memory descriptor");
    if (ftruncate(fd, (off_t)bytes) != 0 || fcntl(fd, F_ADD_SEALS, seals) != 0) {
        enum cm_err code = cm_fail_errno(err, errno, "cannot prepare %zu bytes of memory", bytes);
        close(fd);
        return code;
    }
    *ret_fd = fd;
    return CM_OK;
}

/* Fills this process's page tables, so that no later access faults. */
static int populate(unsigned char *base, size_t bytes, bool writable)
{
    if (madvise(base, bytes, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0)
        return 0;
    if (errno != EINVAL)
        return errno == EFAULT ? ENOMEM : errno;
    /* Before Linux 5.14: one access a page. Writing back what is there changes nothing. */
    for (size_t at = 0; at < bytes; at += page_bytes()) {
        volatile unsigned char *byte = base + at;
        if (writable)
            *byte = *byte;
        else
            (void)*byte;
    }
    return 0;
}

enum cm_err mm_memory_populate(int fd, size_t bytes, struct cm_error *err)
{
    if (bytes == 0)
        return CM_OK;
    int failed;
    do
        failed = fallocate(fd, 0, 0, (off_t)bytes);
    while (failed != 0 && errno == EINTR);
    if (failed != 0)
        return errno == ENOSPC
                   ? cm_fail(err, CM_NOMEM, "the kernel has no %zu bytes left", bytes)
                   : cm_fail_errno(err, errno, "cannot allocate %zu bytes of memory", bytes);
    void *base;
    /* fallocate leaves zeroing to the first access: have that behind us too. */
    enum cm_err code = mm_memory_map(fd, bytes, true, err, &base);
    if (code == CM_OK)
        mm_memory_unmap(base, bytes);
    return code;
}

enum cm_err mm_memory_map_bare(int fd, size_t bytes, struct cm_error *err, void **ret_base)
{
    if (bytes == 0) {
        *ret_base = NULL;
        return CM_OK;
    }
    void *base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return cm_fail_errno(err, errno, "cannot map %zu bytes", bytes);
    *ret_base = base;
    return CM_OK;
}

enum cm_err mm_memory_map(int fd, size_t bytes, bool writable, struct cm_error *err,
                          void **ret_base)
{
    if (bytes == 0) {
        *ret_base = NULL;
        return CM_OK;
    }
    void *base = mmap(NULL, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return cm_fail_errno(err, errno, "cannot map %zu bytes", bytes);
    int errnum = populate(base, bytes, writable);
    if (errnum != 0) {
        munmap(base, bytes);
        return cm_fail_errno(err, errnum, "cannot populate %zu mapped bytes", bytes);
    }
    *ret_base = base;
    return CM_OK;
}

void mm_memory_unmap(void *base, size_t bytes)
{
    if (base)
        CM_ASSERT(munmap(base, bytes) == 0);
}

enum cm_err mm_memory_readonly(int fd, struct cm_error *err, int *ret_fd)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int readonly = open(path, O_RDONLY | O_CLOEXEC);
    if (readonly < 0)
        return cm_fail_errno(err, errno, "cannot re-open memory read-only");
    *ret_fd = readonly;
    return CM_OK;
}

enum cm_err mm_memory_seal(int fd, int seals, struct cm_error *err)
{
    if (fcntl(fd, F_ADD_SEALS, seals) != 0) {
        if (errno == EBUSY)
            return cm_fail(err, CM_PRECONDITION, "the memory is still mapped writable");
        return cm_fail_errno(err, errno, "cannot seal memory");
    }
    int now = mm_memory_seals(fd);
    if (now < 0 || (now & seals) != seals)
        return cm_fail(err, CM_INTERNAL, "the kernel did not keep seals %x of %x", seals,
                       (unsigned)now);
    return CM_OK;
}

int mm_memory_seals(int fd)
{
    return fcntl(fd, F_GET_SEALS);
}

enum cm_err mm_memory_check(int fd, size_t bytes, int seals, bool writable, struct cm_error *err,
                            struct mm_memory_id *ret_id)
{
    struct stat status;
    if (fstat(fd, &status) != 0)
        return cm_fail_errno(err, errno, "cannot look at a descriptor");
    int have = mm_memory_seals(fd);
    if (!S_ISREG(status.st_mode) || have < 0)
        return cm_fail(err, CM_CORRUPT, "the descriptor is not shared memory");
    if (status.st_size < 0 || (uint64_t)status.st_size != bytes)
        return cm_fail(err, CM_CORRUPT, "the memory has %lld bytes, not %zu",
                       (long long)status.st_size, bytes);
    if ((have & seals) != seals)
        return cm_fail(err, CM_CORRUPT, "the memory has seals %x, not all of %x", (unsigned)have,
                       (unsigned)seals);
    int flags = fcntl(fd, F_GETFL);
    int mode = flags < 0 ? -1 : flags & (O_ACCMODE | O_PATH);
    if (mode != (writable ? O_RDWR : O_RDONLY))
        return cm_fail(err, CM_CORRUPT, "the descriptor is not open %s",
                       writable ? "for writing" : "read-only");
    *ret_id = (struct mm_memory_id){(uint64_t)status.st_dev, (uint64_t)status.st_ino};
    return CM_OK;
}

uint64_t mm_memory_resident(int fd)
{
    struct stat status;
    return fstat(fd, &status) == 0 ? (uint64_t)status.st_blocks * 512 : 0;
}
