#!/bin/busybox sh
# The guest's first program: reach the host's root, lay a writable layer over it, hand over to the runner.
# /settings says what and where; anything that fails ends up on the console and stops the machine.

b=/bin/busybox
fail() {
    echo "nearfar-lab: $*"
    $b poweroff -f
}

$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
. /settings
while read -r module; do
    $b insmod "/modules/$module.ko" || fail "loading module $module failed"
done </modules/order

$b mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=524288,cache=loose host /lower || fail "mounting the host's root failed"
$b mount -t tmpfs -o size=75%,mode=755 rw /rw || fail "mounting the writable layer failed"
$b mkdir /rw/upper /rw/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work root /new || fail "mounting the root failed"

# A root of the guest's own where the host's would be wrong.
cd /new || fail "entering the root failed"
$b mkdir -p proc sys dev run
$b mount -t proc proc proc
$b mount -t sysfs sys sys
$b mount -t devtmpfs dev dev
$b mkdir -p dev/pts dev/shm
$b mount -t devpts -o mode=620,ptmxmode=666 devpts dev/pts
$b mount -t tmpfs -o mode=1777 shm dev/shm
$b mount -t tmpfs -o mode=755 run run
$b mkdir -p run/lock run/user run/nearfar/bin
$b mount -t cgroup2 cgroup2 sys/fs/cgroup
$b mount -t debugfs debugfs sys/kernel/debug
$b mount -t tracefs tracefs sys/kernel/tracing
for link in fd:/proc/self/fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do
    [ -e "dev/${link%%:*}" ] || $b ln -s "${link#*:}" "dev/${link%%:*}"
done
if [ -n "$out" ]; then
    $b mkdir -p out
    $b mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=none out out || fail "mounting /out failed"
fi

# The guest kernel's modules under its own name, and the few tools for them that a host may lack.
$b mkdir -p "lib/modules/$release"
$b mount -o bind "/lower$modules_dir" "lib/modules/$release"
$b cp $b run/nearfar/busybox
for tool in modprobe insmod rmmod lsmod poweroff; do
    $b ln -s ../busybox "run/nearfar/bin/$tool"
done
$b hostname "$hostname"
$b ifconfig lo 127.0.0.1 up

# A CXL memory device becomes a memory node as its driver would have it: a region over its decoder, online at once.
if [ -n "$cxl_size" ]; then
    bus=/sys/bus/cxl/devices
    put() { echo "$1" >"$2" || fail "CXL: writing $1 to $2 failed"; }
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ -e $bus/decoder2.0 ] && break
        $b usleep 100000
    done
    [ -e /sys/devices/system/memory/auto_online_blocks ] && echo online >/sys/devices/system/memory/auto_online_blocks
    read -r region <$bus/decoder0.0/create_ram_region || fail "CXL: no root decoder"
    put "$region" $bus/decoder0.0/create_ram_region
    put "$cxl_granularity" "$bus/$region/interleave_granularity"
    put 1 "$bus/$region/interleave_ways"
    put ram $bus/decoder2.0/mode
    put "$cxl_size" $bus/decoder2.0/dpa_size
    put "$cxl_size" "$bus/$region/size"
    put decoder2.0 "$bus/$region/target0"
    put 1 "$bus/$region/commit"
    put "$region" /sys/bus/cxl/drivers/cxl_region/bind
fi

cd /
exec $b switch_root /new "$runner" $runner_args guest "$translations_ms"
fail "starting the runner $runner failed: is it on the host's root?"
