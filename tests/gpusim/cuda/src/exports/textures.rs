//! Handles of textures and surfaces, and tensor maps: what kernels read through them is not
//! simulated, so only their lifetime and their arguments count.

use crate::calls::calls;
use crate::codes::{ERROR_INVALID_HANDLE, ERROR_INVALID_VALUE};
use crate::context::current;
use crate::driver::driver;
use crate::ffi::{Answer, Out};
use crate::types::Handle;

/// A texture or a surface.
pub(crate) struct Texture;

/// `CUtensorMap`.
type TensorMap = [u64; 16];

calls! { CALLS:
    cuTexObjectCreate 5000 cuTexObjectCreate(
        texture: Out<Handle>, resource: Out<u32>, _sampler: u64, _view: u64,
    ) {
        create(&texture, &resource)
    }

    cuTexObjectDestroy 5000 cuTexObjectDestroy(texture: Handle) { destroy(texture) }

    cuSurfObjectCreate 5000 cuSurfObjectCreate(surface: Out<Handle>, resource: Out<u32>) {
        create(&surface, &resource)
    }

    cuSurfObjectDestroy 5000 cuSurfObjectDestroy(surface: Handle) { destroy(surface) }

    cuTensorMapEncodeTiled 12000 cuTensorMapEncodeTiled(
        map: Out<TensorMap>, _kind: u32, rank: u32, address: u64, _lengths: u64, _strides: u64,
        _box: u64, _element_strides: u64, _interleave: u32, _swizzle: u32, _promotion: u32,
        _fill: u32,
    ) {
        encode(&map, rank, address)
    }

    cuTensorMapEncodeIm2col 12000 cuTensorMapEncodeIm2col(
        map: Out<TensorMap>, _kind: u32, rank: u32, address: u64, _lengths: u64, _strides: u64,
        _lower: u64, _upper: u64, _channels: u32, _pixels: u32, _element_strides: u64,
        _interleave: u32, _swizzle: u32, _promotion: u32, _fill: u32,
    ) {
        encode(&map, rank, address)
    }

    cuTensorMapReplaceAddress 12000 cuTensorMapReplaceAddress(map: Out<TensorMap>, address: u64) {
        let mut words = map.get()?;
        words[0] = address;
        map.put(words)
    }
}

fn create(out: &Out<Handle>, resource: &Out<u32>) -> Answer {
    current()?;
    resource.get()?;
    out.put(driver()?.objects.textures.add(Texture))
}

fn destroy(handle: Handle) -> Answer {
    let textures = &driver()?.objects.textures;
    textures.remove(handle, ERROR_INVALID_HANDLE).map(|_| ())
}

/// The address and nothing else: only the GPU reads a map.
fn encode(map: &Out<TensorMap>, rank: u32, address: u64) -> Answer {
    driver()?;
    if !(1..=5).contains(&rank) || address == 0 || !address.is_multiple_of(16) {
        return Err(ERROR_INVALID_VALUE);
    }
    let mut words = [0; 16];
    words[0] = address;
    map.put(words)
}
