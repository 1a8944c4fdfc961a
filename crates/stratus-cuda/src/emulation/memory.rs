//! Copies from and to addresses of the emulated GPU, which are those of the process.
#![allow(unsafe_code)] // Addresses are numbers, as on a GPU; each block says why it is sound.

use std::ptr;

/// Copies memory at an address. As on a GPU, nothing guarantees that it is a value of the session.
pub(super) fn copy_from(address: u64, to: &mut [u8]) {
    let from = ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: the address is an operand's in the memory of `EmulatedDevice`, which exposes it, with as many
    // bytes; kernels and copies run one after the other.
    unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
}

/// Copies bytes to an address. As on a GPU, nothing guarantees that it is a value of the session.
pub(super) fn copy_to(from: &[u8], address: u64) {
    let to = ptr::with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY: as for `copy_from`, in the other direction.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
}
