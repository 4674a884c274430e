//! The device memory that a code image takes, as far as the image says: the loaded sections of a
//! binary, the text of PTX and the arrays that it declares, the largest binary of a fat one. Never
//! reads beyond the given bytes.

/// Bytes of the headers of all kinds.
pub(crate) const HEAD: usize = 64;
/// `SHF_ALLOC`.
const ALLOCATED: u64 = 2;
const ELF: &[u8] = b"\x7fELF";
const FAT: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();
/// Magic number of a fat binary's wrapper; at offset 8 it has a pointer to the binary.
pub(crate) const WRAPPER: [u8; 4] = 0x4662_43b1_u32.to_le_bytes();
/// The kind of a fat binary's entry that is a binary.
const BINARY: u64 = 2;

fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let part = bytes.get(at..at.checked_add(length)?)?;
    let mut whole = [0; 8];
    whole[..length].copy_from_slice(part);
    Some(u64::from_le_bytes(whole))
}

fn place(bytes: &[u8], at: usize, length: usize) -> Option<usize> {
    usize::try_from(number(bytes, at, length)?).ok()
}

/// Whether it is a fat binary.
pub(crate) fn is_fat(image: &[u8]) -> bool {
    image.starts_with(&FAT)
}

/// Bytes of a binary according to its header; `None`: it is text.
pub(crate) fn length(head: &[u8]) -> Option<usize> {
    if is_fat(head) {
        return place(head, 6, 2)?.checked_add(place(head, 8, 8)?);
    }
    head.starts_with(ELF).then_some(())?;
    let (table, entry, count) = (
        place(head, 40, 8)?,
        place(head, 58, 2)?,
        place(head, 60, 2)?,
    );
    table.checked_add(entry.checked_mul(count)?)
}

/// Device memory that it takes, in bytes.
pub(crate) fn size(image: &[u8]) -> u64 {
    if is_fat(image) {
        return largest(image);
    }
    sections(image).unwrap_or_else(|| {
        let text = u64::try_from(image.len()).unwrap_or(u64::MAX);
        text.saturating_add(variables(image))
    })
}

/// Bytes of the loaded sections of a binary.
fn sections(image: &[u8]) -> Option<u64> {
    image.starts_with(ELF).then_some(())?;
    let (table, entry, count) = (
        place(image, 40, 8)?,
        place(image, 58, 2)?,
        place(image, 60, 2)?,
    );
    let mut sum: u64 = 0;
    for section in 0..count {
        let at = table.checked_add(section.checked_mul(entry)?)?;
        if number(image, at.checked_add(8)?, 8)? & ALLOCATED != 0 {
            sum = sum.saturating_add(number(image, at.checked_add(32)?, 8)?);
        }
    }
    Some(sum)
}

/// The largest binary in a fat one, unpacked: the device loads one of them.
fn largest(image: &[u8]) -> u64 {
    let mut most = 0;
    let mut at = place(image, 6, 2).unwrap_or(usize::MAX);
    let entry = |at: usize| {
        let (head, body) = (place(image, at + 4, 4)?, place(image, at + 8, 8)?);
        let unpacked = number(image, at + 56, 8).unwrap_or(0);
        let from = at.checked_add(head)?;
        let next = from.checked_add(body)?.max(at + HEAD);
        let inside = image.get(from..next).and_then(sections);
        let size = inside.unwrap_or_else(|| unpacked.max(u64::try_from(body).unwrap_or(0)));
        let is_binary = number(image, at, 2)? == BINARY;
        Some((next, if is_binary { size } else { 0 }))
    };
    while let Some((next, size)) = at.checked_add(HEAD).and_then(|_| entry(at)) {
        most = most.max(size);
        at = next;
    }
    most
}

/// Bytes of the arrays that PTX declares for all kernels: `.global .align 4 .b8 name[1024];`.
fn variables(text: &[u8]) -> u64 {
    let mut sum: u64 = 0;
    for line in text.split(|byte| *byte == b'\n') {
        let declares = line.trim_ascii_start().starts_with(b".");
        if declares && let Some(bytes) = std::str::from_utf8(line).ok().and_then(declared) {
            sum = sum.saturating_add(bytes);
        }
    }
    sum
}

fn declared(line: &str) -> Option<u64> {
    let mut words = line.split_whitespace();
    let linkage = [".visible", ".weak", ".common"];
    let first = words.find(|word| !linkage.contains(word))?;
    (first == ".global").then_some(())?;
    let width = words.find_map(|word| {
        let kind = word
            .strip_prefix(['.'])?
            .strip_prefix(['b', 'u', 's', 'f'])?;
        kind.parse::<u64>().ok()
    })?;
    // One number for each dimension.
    let mut context_limits = line.split('[').skip(1).map(|part| {
        let number = part.split(']').next().unwrap_or("");
        number.trim().parse::<u64>().ok()
    });
    let count = context_limits.try_fold(1_u64, |all, one| all.checked_mul(one?))?;
    count.checked_mul(width / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A binary with sections of these flags and sizes.
    fn elf(sections: &[(u64, u64)]) -> Vec<u8> {
        let mut image = vec![0; HEAD];
        image[..4].copy_from_slice(ELF);
        image[40] = 64;
        image[58] = 64;
        image[60] = u8::try_from(sections.len()).unwrap();
        for (flags, size) in sections {
            let mut section = [0; 64];
            section[8..16].copy_from_slice(&flags.to_le_bytes());
            section[32..40].copy_from_slice(&size.to_le_bytes());
            image.extend(section);
        }
        image
    }

    fn fat(entries: &[(u16, &[u8], u64)]) -> Vec<u8> {
        let body: usize = entries
            .iter()
            .map(|(_, inside, _)| HEAD + inside.len())
            .sum();
        let mut image = FAT.to_vec();
        image.extend([1, 0, 16, 0]);
        image.extend((body as u64).to_le_bytes());
        for (kind, inside, unpacked) in entries {
            let mut head = [0; HEAD];
            head[..2].copy_from_slice(&kind.to_le_bytes());
            head[4] = 64;
            head[8..16].copy_from_slice(&(inside.len() as u64).to_le_bytes());
            head[56..].copy_from_slice(&unpacked.to_le_bytes());
            image.extend(head);
            image.extend_from_slice(inside);
        }
        image
    }

    #[test]
    fn counts_loaded_sections_of_image() {
        let check = |image: &[u8], expected: u64| assert_eq!(size(image), expected);
        let binary = elf(&[(0, 999), (6, 4096), (3, 1 << 30)]);
        assert_eq!(length(&binary[..HEAD]), Some(binary.len()));
        check(&binary, (1 << 30) + 4096);
        let ptx = b".version 8.0\n.visible .global .align 4 .b32 one[10][3];\n\
            .global .u8 two[5];\n.shared .b8 no[99];\nld.global.u32 %r1, [%rd1];\n.global .b8 three;";
        check(ptx, ptx.len() as u64 + 120 + 5 + 1);
        let whole = fat(&[(1, b"ptx", 1 << 40), (2, b"packed", 7000), (2, &binary, 0)]);
        assert_eq!(length(&whole), Some(whole.len()));
        check(&whole, (1 << 30) + 4096);
        check(&fat(&[(2, b"packed", 7000)]), 7000);
        for cut in 0..whole.len() {
            assert!(size(&whole[..cut]) <= (1 << 30) + 8192);
        }
    }
}
