//! The instances that each model supports, with the driver's own numbers for them. Source: NVIDIA's
//! MIG user guide and `nvidia-smi mig -lgip` listings; for a model without a listing at hand, the
//! memory is a little less than the profile's slices.

/// One kind of GPU instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    /// NVML's name for the kind (`NVML_GPU_INSTANCE_PROFILE_*`).
    pub(crate) kind: u32,
    /// The driver's id, which other calls take.
    pub(crate) id: u32,
    /// Such as `1g.10gb+me`.
    pub(crate) name: String,
    pub(crate) slices: u32,
    /// Memory slices.
    pub(crate) size: u32,
    /// Where they may start.
    pub(crate) starts: &'static [u32],
    /// Most of the kind on one GPU.
    pub(crate) most: u32,
    /// MiB.
    pub(crate) memory: u64,
    /// Streaming multiprocessors.
    pub(crate) sms: u32,
    /// Copy engines, decoders, encoders, JPEG decoders, optical flow units.
    pub(crate) engines: [u32; 5],
}

/// Kind, driver id, what its name ends with, compute slices, memory slices, starts, most, copy
/// engines.
type Shape = (u32, u32, &'static str, u32, u32, &'static [u32], u32, u32);

const SEVEN: [Shape; 7] = [
    (0, 19, "", 1, 1, &[0, 1, 2, 3, 4, 5, 6], 7, 1),
    (7, 20, "+me", 1, 1, &[0, 1, 2, 3, 4, 5, 6], 1, 1),
    (9, 15, "", 1, 2, &[0, 2, 4, 6], 4, 1),
    (1, 14, "", 2, 2, &[0, 2, 4], 3, 2),
    (2, 9, "", 3, 4, &[0, 4], 2, 3),
    (3, 5, "", 4, 4, &[0], 1, 4),
    (4, 0, "", 7, 8, &[0], 1, 7),
];
const FOUR: [Shape; 4] = [
    (0, 14, "", 1, 1, &[0, 1, 2, 3], 4, 1),
    (7, 21, "+me", 1, 1, &[0, 1, 2, 3], 1, 1),
    (1, 5, "", 2, 2, &[0, 2], 2, 2),
    (3, 0, "", 4, 4, &[0], 1, 4),
];
const FOUR_MEDIA: [Shape; 1] = [(8, 6, "+me", 2, 2, &[0, 2], 1, 2)];
const FOUR_GRAPHICS: [Shape; 7] = [
    (10, 47, "+gfx", 1, 1, &[0, 1, 2, 3], 4, 1),
    (11, 35, "+gfx", 2, 2, &[0, 2], 2, 2),
    (12, 32, "+gfx", 4, 4, &[0], 1, 4),
    (13, 67, "-me", 1, 1, &[0, 1, 2, 3], 4, 1),
    (14, 66, "-me", 2, 2, &[0, 2], 2, 2),
    (15, 65, "+me.all", 1, 1, &[0, 1, 2, 3], 1, 1),
    (16, 64, "+me.all", 2, 2, &[0, 2], 1, 2),
];

/// GB in the name, MiB and multiprocessors by memory slices, in the order of `SEVEN` or `FOUR`
/// without `+me`: one slice, (one with double memory,) two, (three,) four, all.
type Sizes = &'static [(u32, u64, u32)];

macro_rules! sizes {
    ($($model:literal: $($gb:literal $mib:literal $multiprocessors:literal),+;)*) => {
        const MODELS: &[(&str, Sizes)] = &[$(($model, &[$(($gb, $mib, $multiprocessors)),+])),*];
    };
}

sizes! {
    "NVIDIA A100-SXM4-40GB": 5 4864 14, 10 9856 14, 10 9856 28, 20 19_968 42, 20 19_968 56, 40 40_192 98;
    "NVIDIA A100-SXM4-80GB": 10 9856 14, 20 19_968 14, 20 19_968 28, 40 40_192 42, 40 40_192 56, 80 80_384 98;
    "NVIDIA A100 80GB PCIe": 10 9856 14, 20 19_968 14, 20 19_968 28, 40 40_192 42, 40 40_192 56, 80 80_384 98;
    "NVIDIA H100 80GB HBM3": 10 9984 16, 20 20_096 26, 20 20_096 32, 40 40_448 60, 40 40_448 64, 80 81_152 132;
    "NVIDIA H100 NVL": 12 10_880 16, 24 22_016 26, 24 22_016 32, 47 47_232 60, 47 47_232 64, 94 95_232 132;
    "NVIDIA H200": 18 16_384 16, 35 33_280 26, 35 33_280 32, 71 71_424 60, 71 71_424 64, 141 142_848 132;
    "NVIDIA B200": 23 22_016 18, 45 45_056 30, 45 45_056 36, 90 90_624 70, 90 90_624 74, 180 182_272 148;
    "NVIDIA A30": 6 5952 14, 12 11_968 28, 24 24_000 56;
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": 24 24_064 46, 48 48_384 94, 96 97_152 188;
}

/// What this model can be partitioned into; nothing where it has no MIG.
pub(crate) fn of(model: &str) -> Vec<Profile> {
    let Some((_, sizes)) = MODELS.iter().find(|(name, _)| *name == model) else {
        return Vec::new();
    };
    let seven = sizes.len() == SEVEN.len() - 1;
    let shapes: Vec<Shape> = match (seven, model.contains("RTX")) {
        (true, _) => SEVEN.to_vec(),
        (false, false) => [&FOUR[..], &FOUR_MEDIA].concat(),
        (false, true) => [&FOUR[..], &FOUR_GRAPHICS].concat(),
    };
    shapes
        .iter()
        .map(|shape| profile(shape, sizes, seven))
        .collect()
}

fn profile(shape: &Shape, sizes: Sizes, seven: bool) -> Profile {
    let (kind, id, more, slices, size, starts, most, copy) = *shape;
    let place = match (seven, kind) {
        (_, 0 | 7 | 10 | 13 | 15) => 0,
        (true, 9) | (false, 1 | 8 | 11 | 14 | 16) => 1,
        (true, 1) | (false, _) => 2,
        (true, 2) => 3,
        (true, 3) => 4,
        (true, _) => 5,
    };
    let (gb, memory, sms) = sizes[place];
    // The media engines go with the memory slices; of the small ones only +me has any.
    let media = match (slices, more) {
        (_, "-me") | (1, "" | "+gfx") => 0,
        (_, "+me.all") => 4,
        _ => slices / 2 + u32::from(slices == 1),
    };
    Profile {
        kind,
        id,
        name: format!("{slices}g.{gb}gb{more}"),
        slices,
        size,
        starts,
        most,
        memory,
        sms,
        engines: [copy, media, 0, u32::from(media > 0), u32::from(media > 0)],
    }
}

/// Compute slices of the whole GPU.
pub(crate) fn slices_of(profiles: &[Profile]) -> u32 {
    profiles.iter().map(|one| one.slices).max().unwrap_or(0)
}
