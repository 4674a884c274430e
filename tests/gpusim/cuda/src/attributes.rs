//! `CUdevice_attribute` by number: what all GPUs here share, and what differs between them.

use aliquot_gpusim_model::model::Gpu;

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
pub(crate) const MULTIPROCESSORS: i32 = 16;

/// The value of an attribute; `None`: there is no such attribute.
pub(crate) fn of(gpu: &Gpu, attribute: i32) -> Option<i32> {
    of_gpu(gpu, attribute).or_else(|| of_all(attribute))
}

/// Multiprocessors: cores by the architecture's cores for each.
pub(crate) fn multiprocessors(gpu: &Gpu) -> u32 {
    let each = if matches!(gpu.architecture, 6 | 7) {
        64
    } else {
        128
    };
    gpu.cores / each
}

/// Most threads that a multiprocessor runs at once.
pub(crate) fn resident_threads(gpu: &Gpu) -> u32 {
    if gpu.architecture == 6 { 1024 } else { 2048 }
}

fn of_gpu(gpu: &Gpu, attribute: i32) -> Option<i32> {
    let on_ampere = |newer, older| if gpu.architecture >= 7 { newer } else { older };
    let hopper = gpu.architecture >= 9;
    let number = |value: u32| value.cast_signed();
    Some(match attribute {
        13 => number(gpu.max_clocks[1] * 1000),
        MULTIPROCESSORS => number(multiprocessors(gpu)),
        20 => number(gpu.compute_mode),
        32 => 1,
        33 => number(gpu.pci_bus),
        36 => number(gpu.max_clocks[2] * 1000),
        37 => on_ampere(5120, 256),
        38 => on_ampere(41_943_040, 4_194_304),
        39 => number(resident_threads(gpu)),
        75 => number(gpu.capability_major),
        76 => number(gpu.capability_minor),
        85 => number(gpu.minor),
        108 => on_ampere(31_457_280, 0),
        120 | 126 | 127 => i32::from(hopper),
        131 | 134 => gpu.numa,
        _ => return None,
    })
}

fn of_all(attribute: i32) -> Option<i32> {
    Some(match attribute {
        1..=3 | 111 => 1024,
        4 => 64,
        5 | 11 => i32::MAX,
        6 | 7 => 65_535,
        8 => 49_152,
        9 | 12 | 82 => 65_536,
        10 | 106 => 32,
        14 | 30 => 512,
        15
        | 19
        | 31
        | 41
        | 78..=80
        | 83
        | 89..=96
        | 98
        | 99
        | 102
        | 103
        | 113..=117
        | 119
        | 122
        | 123
        | 125
        | 129 => 1,
        21..=23 => 131_072,
        24..=26 => 16_384,
        27..=29 => 32_768,
        40 => 3,
        81 => 167_936,
        87 => 2,
        97 => 166_912,
        109 => 134_213_632,
        _ if (1..=146).contains(&attribute) => 0,
        _ => return None,
    })
}
