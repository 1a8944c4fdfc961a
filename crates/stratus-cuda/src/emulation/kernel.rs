//! Compiles a source to a shared library, and calls its kernels.
#![allow(unsafe_code)] // Calls into code of the C++ compiler; each block says why it is sound.

use crate::processor::{Shape, Source};
use libloading::Library;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, OsString, c_char};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use stratus_base::checksum::hex;
use stratus_base::library::root_cause;

/// The prelude of every source.
const EMULATE: &str = include_str!("../source/emulate.h");

/// Compiler options. `-fsanitize` calls functions of emulate.h instead of the compiler's library. Fibers
/// switch stacks, which a fortified `longjmp` would forbid.
const FLAGS: &[&str] = &[
    "-O1",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fno-exceptions",
    "-fvisibility=hidden",
    "-fsanitize=alignment,null,bounds",
    "-U_FORTIFY_SOURCE",
    "-nodefaultlibs",
    "-w",
];

/// The libraries to link.
const LIBRARIES: &[&str] = &["-lm", "-lc", "-lgcc"];

/// The stack size of a thread, as in emulate.h.
const STACK_BYTES: usize = 64 << 10;
/// The maximum number of threads of a block.
const STACKS: usize = 1024;
/// The shared memory of a block.
const SHARED_BYTES: usize = 256 << 10;

/// The maximum number of compiler messages in an error.
const MESSAGE_LINES: usize = 12;

/// Stacks and shared memory that no launch uses at present.
static IDLE_MEMORY: Mutex<Vec<LaunchMemory>> = Mutex::new(Vec::new());

/// A lock per library. Shared variables of kernels are static in it, so it runs one launch at a time;
/// launches of different libraries run in parallel.
static LIBRARY_LOCKS: Mutex<BTreeMap<PathBuf, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());

/// The result of compiling a library.
type Compiled = Arc<OnceLock<Result<PathBuf, String>>>;

/// The libraries by name, compiled or being compiled: concurrent tests wait for each other.
static COMPILED: Mutex<Option<HashMap<String, Compiled>>> = Mutex::new(None);

/// 256 bytes at a multiple of 256.
#[derive(Clone, Copy)]
#[repr(C, align(256))]
struct AlignedLine([u8; 256]);

struct LaunchMemory {
    stacks: Vec<u8>,
    shared: Vec<AlignedLine>,
}

/// The counterpart of `emulated::Launch` in emulate.h.
#[repr(C)]
struct Launch {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    reverse_order: u32,
    words: *const u64,
    count: u64,
    stacks: *mut u8,
    shared: *mut u8,
    clock: *mut u64,
}

/// The launcher of a kernel; returns null, or an error message.
type Launcher = unsafe extern "C" fn(*const Launch) -> *const c_char;

/// A loaded kernel.
pub(super) struct Kernel {
    pub file: &'static str,
    pub name: String,
    launcher: Launcher,
    /// Held during a launch.
    lock: Arc<Mutex<()>>,
    /// Keeps the launcher's code loaded.
    _library: Library,
}

impl Kernel {
    /// Compiles a source, unless already compiled, and looks up a kernel.
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn load(source: &Source, name: &str) -> Result<Self, String> {
        Self::from_text(source, &source.text(), name)
    }

    /// [`Self::load`] with a text in place of the source's own.
    fn from_text(source: &Source, text: &str, name: &str) -> Result<Self, String> {
        let path = compiled(source, text)?;
        let failed = |error: libloading::Error| format!("{}: {}", path.display(), root_cause(&error));
        // SAFETY: the library was compiled from our sources, which have no initialisers.
        let library = unsafe { Library::new(&path) }.map_err(failed)?;
        let symbol = format!("emulated_{name}\0");
        // SAFETY: EXPORT in emulate.h defines functions of this type under such names; `_library` keeps them
        // loaded.
        let launcher = *unsafe { library.get::<Launcher>(symbol.as_bytes()) }
            .map_err(|_| format!("`{}` does not export `{name}`", source.file))?;
        let mut locks = LIBRARY_LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        let lock = Arc::clone(locks.entry(path).or_default());
        Ok(Self { file: source.file, name: name.to_owned(), launcher, lock, _library: library })
    }

    /// Runs a launch to its end. Addresses among `words` must be those of live memory, as on a GPU. `clock`
    /// counts the reads of the device's clock.
    ///
    /// # Errors
    /// If the emulation detects a misaligned address, an index out of bounds, or a barrier that not all
    /// threads reach.
    pub fn run(
        &self,
        shape: Shape,
        words: &[u64],
        reverse_order: bool,
        clock: &mut u64,
    ) -> Result<(), String> {
        let _running = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = IDLE_MEMORY.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut memory = idle.unwrap_or_else(|| LaunchMemory {
            stacks: vec![0; STACKS * STACK_BYTES],
            shared: vec![AlignedLine([0; 256]); SHARED_BYTES / 256],
        });
        let launch = Launch {
            grid: shape.grid,
            block: shape.block,
            shared_bytes: shape.shared,
            reverse_order: u32::from(reverse_order),
            words: words.as_ptr(),
            count: words.len() as u64,
            stacks: memory.stacks.as_mut_ptr(),
            shared: memory.shared.as_mut_ptr().cast(),
            clock,
        };
        // SAFETY: `launch` and its pointers outlive the call, nothing else uses the memory, and the lock
        // excludes other launches of this library. As on a GPU, nothing guarantees the addresses among the
        // words: checking them is the purpose of these tests.
        let error = unsafe { (self.launcher)(&raw const launch) };
        IDLE_MEMORY.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: an error is a zero-terminated string in static memory of the library, unchanged until the
        // next launch.
        Err(unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned())
    }
}

fn compiler() -> OsString {
    std::env::var_os("CXX").unwrap_or_else(|| "c++".into())
}

/// Checks that there is a C++ compiler.
///
/// # Errors
/// The error of running it.
pub(super) fn check_compiler() -> Result<(), String> {
    static FOUND: OnceLock<Result<(), String>> = OnceLock::new();
    let find = || match Command::new(compiler()).arg("--version").output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("the C++ compiler {:?} failed with {}", compiler(), output.status)),
        Err(error) => Err(format!("cannot run the C++ compiler {:?}: {error}", compiler())),
    };
    FOUND.get_or_init(find).clone()
}

/// The library of a source, compiled now or by an earlier test run.
fn compiled(source: &Source, text: &str) -> Result<PathBuf, String> {
    let text = format!("{EMULATE}{text}");
    let mut hash = Sha256::new();
    [FLAGS, LIBRARIES].concat().iter().for_each(|flag| hash.update(flag.as_bytes()));
    hash.update(text.as_bytes());
    let name = hex(&hash.finalize());
    let entry = {
        let mut all = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.get_or_insert_default().entry(name.clone()).or_default())
    };
    let compile = || {
        compile(source, &text, &name).map_err(|error| {
            let defined = source.definitions.iter().map(|(name, value)| format!(" {name}={value}"));
            format!("{}.cu with{}: {error}", source.file, defined.collect::<String>())
        })
    };
    entry.get_or_init(compile).clone()
}

/// The folder of compiled libraries: next to the running program, in cargo's build folder.
fn folder() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = program.parent().unwrap_or(Path::new(".")).join("emulation");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

fn compile(source: &Source, text: &str, name: &str) -> Result<PathBuf, String> {
    let folder = folder()?;
    let library = folder.join(format!("{name}.so"));
    if library.exists() {
        return Ok(library);
    }
    // Other processes may compile the same source, and must never see an incomplete library.
    let unfinished = format!("{}-{name}.{}", source.file, std::process::id());
    let (code, compiled) =
        (folder.join(format!("{unfinished}.cpp")), folder.join(format!("{unfinished}.so")));
    std::fs::write(&code, text).map_err(|error| format!("{}: {error}", code.display()))?;
    let run =
        Command::new(compiler()).args(FLAGS).arg(&code).args(LIBRARIES).arg("-o").arg(&compiled).output();
    let output = run.map_err(|error| error.to_string())?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(message.lines().take(MESSAGE_LINES).collect::<Vec<_>>().join("\n"));
    }
    std::fs::remove_file(&code).map_err(|error| error.to_string())?;
    std::fs::rename(&compiled, &library).map_err(|error| error.to_string())?;
    Ok(library)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processor::Shape;
    use half::f16;
    use stratus_engine::DType;

    /// Runs kernel `k` on a grid of one block.
    fn run(text: &str, threads: u32, words: &[u64], reverse_order: bool) -> Result<(), String> {
        let source = Source::new("common", DType::F32, 1);
        let text = format!("{}extern \"C\" __global__ void k{text}\nEXPORT(k)\n", source.text());
        // The file is common.cu itself, so the text contains it twice: remove one copy.
        let text = text.replacen(crate::source::text("common").unwrap_or_default(), "", 1);
        let shape = Shape { grid: [1, 1, 1], block: [threads, 1, 1], shared: 1024 };
        Kernel::from_text(&source, &text, "k")?.run(shape, words, reverse_order, &mut 0)
    }

    /// Runs a kernel that writes numbers, in both orders, which must give the same result.
    fn written<const N: usize>(text: &str, threads: u32) -> [i32; N] {
        let [forwards, backwards] = [false, true].map(|reverse_order| {
            let mut numbers = [-7; N];
            run(text, threads, &[numbers.as_mut_ptr().expose_provenance() as u64], reverse_order).unwrap();
            std::hint::black_box(numbers)
        });
        assert_eq!(forwards, backwards);
        forwards
    }

    #[test]
    fn threads_wait_at_barriers() {
        let sum = "(int *to) { float sum = block_sum((float)threadIdx.x); to[threadIdx.x] = (int)sum; }";
        assert_eq!(written::<96>(sum, 96), [95 * 96 / 2; 96]);
        let turn = "(int *to) {
            DYNAMIC_SHARED(int, shared);
            shared[threadIdx.x] = threadIdx.x;
            __syncthreads();
            to[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
        }";
        assert_eq!(written::<40>(turn, 40), std::array::from_fn(|i| 39 - i as i32));
    }

    #[test]
    fn lanes_exchange_values() {
        let down = "(int *to) {
            int x = threadIdx.x;
            x += __shfl_down_sync(0xffffffffu, x, 1);
            x = __shfl_sync(0xffffffffu, x, 2, 8);
            to[threadIdx.x] = x;
        }";
        assert_eq!(written::<32>(down, 32), std::array::from_fn(|i| (i as i32 / 8 * 8 + 2) * 2 + 1));
        let parts = "(int *to) {
            int x = threadIdx.x, all = 0;
            if (x < 16) for (int i = 0; i <= x / 16; i++) all = __ballot_sync(0x0000ffffu, x % 2);
            else for (int i = 0; i < 3; i++) x = __shfl_xor_sync(0xffff0000u, x, 1);
            to[threadIdx.x] = threadIdx.x < 16 ? all : x;
        }";
        let expected = std::array::from_fn(|i| if i < 16 { 0xaaaa } else { i as i32 ^ 1 });
        assert_eq!(written::<32>(parts, 32), expected);
    }

    /// Runs a kernel that converts elements.
    fn converted<A: Copy, B: Copy + Default>(text: &str, from: &[A]) -> Vec<B> {
        let mut to = vec![B::default(); from.len()];
        let words = [from.as_ptr().expose_provenance(), to.as_mut_ptr().expose_provenance(), from.len()];
        run(text, 32, &words.map(|word| word as u64), false).unwrap();
        std::hint::black_box(to)
    }

    #[test]
    fn every_f16_is_widened_exactly() {
        let halves: Vec<u16> = (0..=u16::MAX).collect();
        let widen = "(const f16 *from, float *to, i64 count) {
            for (i64 i = threadIdx.x; i < count; i += blockDim.x) to[i] = widen(from[i]);
        }";
        for (bits, wide) in halves.iter().zip(converted::<_, f32>(widen, &halves)) {
            let expected = f16::from_bits(*bits).to_f32();
            let same = wide.to_bits() == expected.to_bits() || (wide.is_nan() && expected.is_nan());
            assert!(same, "{bits:#06x} is {expected}, not {wide}");
        }
    }

    #[test]
    fn f16_stores_round_to_nearest() {
        // Every finite f16, the midpoint to the next one, and the f32 neighbours of both.
        const INFINITY: u16 = 0x7c00;
        let mut sizes: Vec<f32> = Vec::new();
        for bits in 0..INFINITY {
            let exact = f16::from_bits(bits).to_f32();
            let next = if bits + 1 == INFINITY { 65_536.0 } else { f16::from_bits(bits + 1).to_f32() };
            let middle = exact.midpoint(next);
            sizes.extend([exact.next_down().max(0.0), exact, exact.next_up()]);
            sizes.extend([middle.next_down(), middle, middle.next_up()]);
        }
        // Numbers of every exponent and fraction, with overflows, infinities and NaN.
        sizes.extend((0..0x8000_0000_u32).step_by(8_191).map(f32::from_bits));
        let special =
            [0x7f7f_ffff, 0x7f80_0000, 0x7f80_0001, 0x7f80_2000, 0x7fbf_ffff, 0x7fc0_0000, 0x7fff_ffff];
        sizes.extend([1, 0x007f_ffff, 0x0080_0000, 0x477f_ffff, 0x4780_0000].map(f32::from_bits));
        sizes.extend(special.map(f32::from_bits));
        let numbers: Vec<f32> = sizes.iter().flat_map(|&size| [size, -size]).collect();
        let by_one = "(const float *from, f16 *to, i64 count) {
            for (i64 i = threadIdx.x; i < count; i += blockDim.x) narrow(from[i], to[i]);
        }";
        // There is an even number of them.
        let by_two = "(const float *from, f16 *to, i64 count) {
            for (i64 i = 2 * threadIdx.x; i < count; i += 2 * blockDim.x) {
                float v[2];
                load(from + i, v);
                store(to + i, v);
            }
        }";
        for text in [by_one, by_two] {
            for (number, bits) in numbers.iter().zip(converted::<_, u16>(text, &numbers)) {
                let (stored, expected) = (f16::from_bits(bits), f16::from_f32(*number));
                let same = bits == expected.to_bits() || (stored.is_nan() && expected.is_nan());
                assert!(same, "{number:e} ({:#010x}) is {expected}, not {stored}", number.to_bits());
            }
        }
    }

    #[test]
    fn errors_in_kernels_are_reported() {
        let mut numbers = [0_u64; 8];
        let address = numbers.as_mut_ptr().expose_provenance() as u64;
        let error = |text: &str, words: &[u64]| run(text, 64, words, false).unwrap_err();
        assert!(error("(int *to) { to[0] = 1; }", &[0]).contains("null"));
        assert!(error("(int *to) { to[0] = 1; }", &[address + 2]).contains("misaligned"));
        assert!(error("(int *to) { to[0] = 1; }", &[address, 1]).contains("1 parameters"));
        assert!(error("(int n) { __shared__ int x[4]; x[n] = 1; }", &[4]).contains("bounds"));
        let divergent = "(int n) { if (threadIdx.x < n) __syncthreads(); else __syncwarp(); }";
        assert!(error(divergent, &[16]).contains("deadlock"));
        assert!(error("(int n) { no }", &[1]).contains("error"));
        assert_eq!(run(divergent, 64, &[32], false), Ok(()));
    }
}
