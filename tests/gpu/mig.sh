#!/bin/sh
# MIG-2, MIG-5, MIG-8, MIG-11, MIG-17 on a real card, as far as they can be read: the mode of
# MIG is the machine's owner's, so nothing is cut here. Where instances are there they are
# compared with what our own reader says of them.
set -eu
. "$(dirname "$0")/lib.sh"
need nvidia-smi "NVIDIA's driver"

mode=$(of_first_card mig.mode.current)
echo "card: $(of_first_card name), driver $(of_first_card driver_version), MIG $mode"
listed=$(nvidia-smi -L | grep -c 'MIG-' || true)
case $mode in
Enabled)
    if [ "$listed" -eq 0 ]; then
        for row in MIG-2 MIG-5 MIG-8 MIG-11; do skipped "$row" "MIG is on and nothing is cut"; done
    else
        uuid=$(nvidia-smi -L | sed -n 's/.*(UUID: \(MIG-[^)]*\)).*/\1/p' | head -n 1)
        alone=$(nvidia-smi -L | grep -c "$uuid" || true)
        if [ "$alone" -eq 1 ]; then
            seen MIG-2 "the driver lists $uuid once"
        else
            not_seen MIG-2 "$uuid is listed $alone times"
        fi
        case $uuid in
        MIG-GPU-*) not_seen MIG-5 "$uuid is of the form before R470; pins take MIG-<uuid>" ;;
        *) seen MIG-5 "$uuid is of the form that pins take" ;;
        esac
        gi=$(nvidia-smi mig -lgi | grep -c 'MIG ' || true)
        if [ "$gi" -ge 1 ]; then
            seen MIG-8 "$gi GPU instances with their ids"
        else
            not_seen MIG-8 "no GPU instance beside $listed MIG devices"
        fi
        used=$(nvidia-smi -q -x | grep -c '<mig_device>' || true)
        if [ "$used" -ge 1 ]; then
            seen MIG-11 "memory of $used instances by the driver"
        else
            not_seen MIG-11 "no memory by instance"
        fi
    fi
    ;;
Disabled | '[N/A]' | 'N/A' | '')
    for row in MIG-2 MIG-5 MIG-8 MIG-11; do skipped "$row" "MIG is ${mode:-not told}"; done
    ;;
*) for row in MIG-2 MIG-5 MIG-8 MIG-11; do skipped "$row" "MIG mode $mode"; done ;;
esac

# The placements from which dynamic instances are chosen. NVML tells them while MIG is off too,
# nvidia-smi lists them for cards with MIG on only.
if placements=$(nvidia-smi mig -lgipp 2>/dev/null); then
    count=$(echo "$placements" | grep -c '{' || true)
    if [ "$count" -ge 1 ]; then
        seen MIG-17 "$count profiles with their placements"
        echo "$placements"
    else
        skipped MIG-17 "the card tells no placements"
    fi
else
    skipped MIG-17 "nvidia-smi lists no placements: MIG is ${mode:-not told}"
fi
exit "$failed"
