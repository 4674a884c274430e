#!/bin/sh
# Tests MIG-2, MIG-5, MIG-8, MIG-11 and MIG-17 on a real GPU by reading only: the MIG mode belongs
# to the machine's owner, so the script creates no instance. It compares existing instances with
# what our own reader reports.
set -eu
. "$(dirname "$0")/lib.sh"
need nvidia-smi "NVIDIA's driver"

mode=$(first_gpu_field mig.mode.current)
echo "GPU: $(first_gpu_field name), driver $(first_gpu_field driver_version), MIG $mode"
listed=$(bounded nvidia-smi -L | grep -c 'MIG-' || true)
case $mode in
Enabled)
    if [ "$listed" -eq 0 ]; then
        for row in MIG-2 MIG-5 MIG-8 MIG-11; do skipped "$row" "MIG is enabled without instances"; done
    else
        uuid=$(bounded nvidia-smi -L | sed -n 's/.*(UUID: \(MIG-[^)]*\)).*/\1/p' | head -n 1)
        alone=$(bounded nvidia-smi -L | grep -c "$uuid" || true)
        if [ "$alone" -eq 1 ]; then
            seen MIG-2 "the driver lists $uuid once"
        else
            not_seen MIG-2 "$uuid is listed $alone times"
        fi
        case $uuid in
        MIG-GPU-*) not_seen MIG-5 "$uuid is of the form before R470; pins take MIG-<uuid>" ;;
        *) seen MIG-5 "$uuid is of the form that pins take" ;;
        esac
        gi=$(bounded nvidia-smi mig -lgi | grep -c 'MIG ' || true)
        if [ "$gi" -ge 1 ]; then
            seen MIG-8 "$gi GPU instances with their ids"
        else
            not_seen MIG-8 "no GPU instance beside $listed MIG devices"
        fi
        used=$(bounded nvidia-smi -q -x | grep -c '<mig_device>' || true)
        if [ "$used" -ge 1 ]; then
            seen MIG-11 "memory of $used instances by the driver"
        else
            not_seen MIG-11 "no memory by instance"
        fi
    fi
    ;;
Disabled | '[N/A]' | 'N/A' | '')
    for row in MIG-2 MIG-5 MIG-8 MIG-11; do skipped "$row" "MIG is ${mode:-not reported}"; done
    ;;
*) for row in MIG-2 MIG-5 MIG-8 MIG-11; do skipped "$row" "MIG mode $mode"; done ;;
esac

# The placements from which dynamic MIG chooses. NVML reports them while MIG is disabled as well;
# nvidia-smi lists them only for GPUs with MIG enabled.
if placements=$(bounded nvidia-smi mig -lgipp 2>/dev/null); then
    count=$(echo "$placements" | grep -c '{' || true)
    if [ "$count" -ge 1 ]; then
        seen MIG-17 "$count profiles with their placements"
        echo "$placements"
    else
        skipped MIG-17 "the GPU reports no placements"
    fi
else
    skipped MIG-17 "nvidia-smi lists no placements: MIG is ${mode:-not reported}"
fi
exit "$failed"
