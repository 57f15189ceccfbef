#!/bin/sh
# The kernels on CPUs that this machine is too good for: runs kernels_digest natively and under
# qemu's user-mode emulation with AVX2 but not AVX-512, and with neither; all digests must be equal.
# Skips (exit 77) where qemu-x86_64 is missing. Argument: the kernels_digest program.
set -eu
digest=$1
qemu=$(command -v qemu-x86_64 || command -v qemu-x86_64-static || true)
if [ -z "$qemu" ]; then
    echo "skipped: qemu-x86_64 is missing (Debian: qemu-user)"
    exit 77
fi
native=$("$digest")
echo "native:"
echo "$native"
want=$(echo "$native" | sed -n 's/^scalar //p')
failed=0
# CPU model, the best instruction set that it must show.
for entry in max:avx2 Haswell:avx2 Nehalem:scalar; do
    cpu=${entry%:*}
    best=${entry#*:}
    lines=$("$qemu" -cpu "$cpu" "$digest" 2>/dev/null) || {
        echo "$cpu: the program failed"
        failed=1
        continue
    }
    echo "$cpu:"
    echo "$lines"
    if [ "$(echo "$lines" | sed -n '$s/ .*//p')" != "$best" ]; then
        echo "$cpu: expected $best as the best instruction set"
        failed=1
    fi
    if echo "$lines" | sed 's/^[a-z0-9]* //' | grep -qvxF "$want"; then
        echo "$cpu: other bits than native"
        failed=1
    fi
done
exit $failed
