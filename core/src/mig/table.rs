//! The geometries of known GPU models, for planning without a GPU at hand; on a node NVML
//! gives them.
//!
//! Source: NVIDIA's MIG user guide, supported profiles and their placements. Memory is
//! nominal, as in the profile's name; a driver gives a few percent less, and some round a
//! name differently. A model whose name leaves its memory open is not here.

use std::collections::BTreeSet;

use super::{Geometry, MigProfile};
use crate::units::Mib;

/// GB of an instance of one slice, one slice with double memory, two, three, four and seven
/// slices, on GPUs with 7 compute and 8 memory slices, by words of the product's name.
const SEVEN: [(&[&str], [u16; 6]); 17] = [
    (&["A100", "40GB"], [5, 10, 10, 20, 20, 40]),
    (&["A100", "80GB"], [10, 20, 20, 40, 40, 80]),
    (&["H100", "NVL"], [12, 24, 24, 47, 47, 94]),
    (&["H100", "80GB"], [10, 20, 20, 40, 40, 80]),
    (&["H100", "PCIe"], [10, 20, 20, 40, 40, 80]),
    (&["H20", "3e"], [18, 35, 35, 71, 71, 141]),
    (&["H20"], [12, 24, 24, 48, 48, 96]),
    (&["H200"], [18, 35, 35, 71, 71, 141]),
    (&["GH200", "120GB"], [12, 24, 24, 48, 48, 96]),
    (&["GH200", "480GB"], [12, 24, 24, 48, 48, 96]),
    (&["GH200", "144G"], [18, 36, 36, 72, 72, 144]),
    (&["B200"], [23, 45, 45, 90, 90, 180]),
    (&["GB200"], [23, 47, 47, 93, 93, 186]),
    (&["B300"], [34, 67, 67, 135, 135, 269]),
    (&["GB300"], [35, 70, 70, 139, 139, 278]),
    (&["A800", "40GB"], [5, 10, 10, 20, 20, 40]),
    (&["A800", "80GB"], [10, 20, 20, 40, 40, 80]),
];
/// The same of one, two and four slices, on GPUs with 4 of each; and whether they have
/// graphics profiles.
const FOUR: [(&[&str], [u16; 3], bool); 2] = [
    (&["A30"], [6, 12, 24], false),
    (&["RTX", "PRO", "6000"], [24, 48, 96], true),
];

/// The names of all profiles of all models in the table, sorted.
pub fn names() -> BTreeSet<String> {
    let seven = SEVEN.iter().map(|(words, _)| words);
    let products = seven.chain(FOUR.iter().map(|(words, ..)| words));
    let all = products.filter_map(|words| geometry(&words.join(" ")));
    let names = all.flat_map(|geometry| {
        let profiles = geometry.profiles().iter();
        profiles.map(|p| p.name.clone()).collect::<Vec<_>>()
    });
    names.collect()
}

/// The geometry of the model with this name (NVML's), if it is in the table.
pub fn geometry(product: &str) -> Option<Geometry> {
    let words: Vec<&str> = product.split([' ', '-']).collect();
    let named =
        |words_of_product: &[&str]| words_of_product.iter().all(|word| words.contains(word));
    if let Some((_, gb)) = SEVEN
        .iter()
        .find(|(words_of_product, _)| named(words_of_product))
    {
        let [one, double, two, three, four, all] = *gb;
        let profiles = vec![
            profile(one, "", 1, 1, &[0, 1, 2, 3, 4, 5, 6], 7),
            profile(one, "+me", 1, 1, &[0, 1, 2, 3, 4, 5, 6], 1),
            profile(double, "", 1, 2, &[0, 2, 4, 6], 4),
            profile(two, "", 2, 2, &[0, 2, 4], 3),
            profile(three, "", 3, 4, &[0, 4], 2),
            profile(four, "", 4, 4, &[0], 1),
            profile(all, "", 7, 8, &[0], 1),
        ];
        return Geometry::new(7, profiles).ok();
    }
    let (_, [one, two, all], draws) = FOUR
        .iter()
        .find(|(words_of_product, ..)| named(words_of_product))?;
    let ones = |more, most| profile(*one, more, 1, 1, &[0, 1, 2, 3], most);
    let twos = |more, most| profile(*two, more, 2, 2, &[0, 2], most);
    let whole = |more| profile(*all, more, 4, 4, &[0], 1);
    let mut profiles = vec![ones("", 4), ones("+me", 1), twos("", 2), whole("")];
    if *draws {
        profiles.extend([ones("+gfx", 4), twos("+gfx", 2), whole("+gfx")]);
        profiles.extend([ones("-me", 4), twos("-me", 2)]);
        profiles.extend([ones("+me.all", 1), twos("+me.all", 1)]);
    } else {
        profiles.push(twos("+me", 1));
    }
    Geometry::new(4, profiles).ok()
}

fn profile(gb: u16, more: &str, compute: u8, size: u8, starts: &[u8], most: u8) -> MigProfile {
    MigProfile {
        name: format!("{compute}g.{gb}gb{more}"),
        compute,
        size,
        memory: Mib(u64::from(gb) * 1024),
        starts: starts.to_vec(),
        most,
    }
}
