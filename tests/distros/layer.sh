# shellcheck shell=bash
# Sourced within a mount namespace: above the root filesystem $root a layer in memory, which is $root from then on.
above=$root/mnt  # the overlay does not see what is mounted there
mount -t tmpfs tmpfs "$above"
mkdir "$above"/{upper,work,root}
mount -t overlay overlay -o "lowerdir=$root,upperdir=$above/upper,workdir=$above/work" "$above/root"
root=$above/root
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount --rbind /dev "$root/dev"
for place in dev/shm tmp run; do mount -t tmpfs tmpfs "$root/$place"; done
printf '127.0.0.1 localhost distros\n::1 localhost\n' >"$root/etc/hosts"
