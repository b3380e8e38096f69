# shellcheck shell=sh
# Give a process in a new mount namespace a file system of its own, then run a command in it:
#   sh sandbox_view.sh SCRATCH_BYTES PREFIX COMMAND ...
# It shows /usr and PREFIX (as /python; "" if it is below /usr), read-only, three devices, and an empty writable /tmp.
# /sys is only the place where the new root is built.
set -eu
scratch_bytes=$1 prefix=$2
shift 2
mount -t tmpfs -o mode=755,size=1m,nosuid tmpfs /sys
cd /sys
mkdir usr python dev tmp proc old
mount --rbind /usr usr
if [ -n "$prefix" ]; then mount --rbind "$prefix" python; fi
for name in bin sbin lib lib32 lib64; do
    if [ -L "/$name" ]; then
        ln -s "usr/$name" "$name"
    elif [ -d "/$name" ]; then
        mkdir "$name"
        mount --rbind "/$name" "$name"
    fi
done
for name in null zero urandom; do
    : >"dev/$name"
    mount --bind "/dev/$name" "dev/$name"
done
# Mounts below a folder stay writable if only the folder is made read-only.
while read -r _ _ _ _ where _; do
    case $where in
        /sys/usr* | /sys/python* | /sys/bin* | /sys/sbin* | /sys/lib*)
            mount -o remount,bind,ro "$where"
            ;;
    esac
done </proc/self/mountinfo
mount -t tmpfs -o "size=$scratch_bytes,mode=1777,nosuid,nodev" tmpfs tmp
mount -o remount,bind,ro /sys
# umount reads /proc, which goes last.
mount --rbind /proc proc
pivot_root . old
cd /tmp
umount -l /old
umount -l /proc
# Not exec: the first process of the namespace stays, because a change of user would free it from its parent's end.
code=0
"$@" || code=$?
exit "$code"
