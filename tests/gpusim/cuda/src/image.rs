//! The GPU memory that an image needs: its code, and the variables that it declares.

/// Bytes of an ELF file's header, and of the entries of its table of sections.
const HEADER: usize = 64;
const SECTION: usize = 64;
/// `SHF_ALLOC`.
const ALLOCATED: u64 = 2;

/// How a fat binary begins, and the wrapper that compilers make of one.
pub(crate) const FAT: u64 = 0xba55_ed50;
pub(crate) const WRAPPER: u64 = 0x4662_43b1;
/// An entry of a fat binary that is a binary.
const BINARY: u64 = 2;

/// The first four bytes.
pub(crate) fn word(bytes: &[u8]) -> Option<u64> {
    number(bytes, 0, 4)
}

/// Bytes of a fat binary from its header.
pub(crate) fn length_of_fat(header: &[u8]) -> Option<usize> {
    let whole = number(header, 6, 2)?.checked_add(number(header, 8, 8)?)?;
    usize::try_from(whole).ok()
}

/// The first binary in a fat one: it is for this GPU.
pub(crate) fn binary_of_fat(fat: &[u8]) -> Option<Vec<u8>> {
    let mut at = usize::try_from(number(fat, 6, 2)?).ok()?;
    loop {
        let body = at.checked_add(usize::try_from(number(fat, at + 4, 4)?).ok()?)?;
        let end = body.checked_add(usize::try_from(number(fat, at + 8, 8)?).ok()?)?;
        if number(fat, at, 2)? == BINARY {
            return Some(fat.get(body..end)?.to_vec());
        }
        at = end;
    }
}

fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let part = bytes.get(at..at.checked_add(length)?)?;
    Some(
        part.iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
    )
}

/// Bytes of an ELF image from its header; `None`: it is none.
pub(crate) fn length_of_elf(header: &[u8]) -> Option<usize> {
    header.starts_with(b"\x7fELF").then_some(())?;
    let sections = number(header, 60, 2)?.checked_mul(SECTION as u64)?;
    let end = number(header, 40, 8)?.checked_add(sections)?;
    usize::try_from(end).ok().map(|end| end.max(HEADER))
}

/// The GPU memory of an image, in bytes.
pub(crate) fn size(image: &[u8]) -> u64 {
    of_elf(image).unwrap_or_else(|| image.len() as u64 + variables(image))
}

fn of_elf(image: &[u8]) -> Option<u64> {
    length_of_elf(image)?;
    let (table, count) = (number(image, 40, 8)?, number(image, 60, 2)?);
    let table = usize::try_from(table).ok()?;
    let sections = (0..usize::try_from(count).ok()?).map(|i| table + i * SECTION);
    let sizes = sections.map(|at| {
        let flags = number(image, at + 8, 8)?;
        let size = number(image, at + 32, 8)?;
        Some(if flags & ALLOCATED == 0 { 0 } else { size })
    });
    sizes.sum()
}

/// Bytes of the arrays that PTX declares with `.global`.
fn variables(image: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(image);
    let declared = text.lines().filter(|line| {
        let words = line.split_whitespace();
        words.take(2).any(|word| word == ".global")
    });
    let sizes = declared.filter_map(|line| {
        let (before, rest) = line.split_once('[')?;
        let length: u64 = rest.split_once(']')?.0.trim().parse().ok()?;
        let mut kinds = before.split_whitespace().filter(|word| {
            word.starts_with([' ', '.']) && word.ends_with(|c: char| c.is_ascii_digit())
        });
        let kind = kinds.next_back()?;
        let bits: u64 = kind
            .trim_start_matches(|c: char| !c.is_ascii_digit())
            .parse()
            .ok()?;
        length.checked_mul(bits / 8)
    });
    sizes.sum()
}
