//! CUPTI: the start and end of each kernel as NVIDIA's tools measure them. Training does not need it; `bench
//! trace` compares Stratus's times with it.
//!
//! CUPTI requests buffers and returns them with records, on its own thread. Once it has recorded, the driver
//! calls into it until the process ends, so it is never unloaded.

use super::driver::Gpu;
use libloading::Library;
use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use stratus_engine::device::{KernelSpan, Tracer};

type BufferRequestedFn = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type BufferCompletedFn = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
type RegisterCallbacksFn = unsafe extern "C" fn(BufferRequestedFn, BufferCompletedFn) -> i32;
type EnableFn = unsafe extern "C" fn(u32) -> i32;
type GetNextRecordFn = unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> i32;
type GetDroppedRecordsFn = unsafe extern "C" fn(*mut c_void, u32, *mut usize) -> i32;
type GetVersionFn = unsafe extern "C" fn(*mut u32) -> i32;
type GetTimestampFn = unsafe extern "C" fn(*mut u64) -> i32;

/// `CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL`.
const KIND_CONCURRENT_KERNEL: u32 = 10;
/// The offset of the start, in nanoseconds, in the record of a kernel. It is the same from
/// `CUpti_ActivityKernel3` (CUDA 7) to `CUpti_ActivityKernel13` (CUDA 13.5): later versions append fields.
const START_OFFSET: usize = 16;
/// The offset of the end, in nanoseconds, in the record of a kernel.
const END_OFFSET: usize = 24;
/// The oldest version with known records: that of CUDA 11.6. CUDA 12.9 has 28, and later versions have `major
/// * 10000 + minor * 100 + update`.
const MIN_API_VERSION: u32 = 17;
/// The newest version with known records: all of CUDA 13.
const MAX_API_VERSION: u32 = 139_999;
/// The maximum difference between the tool's clock and the times of its records, in nanoseconds.
const MAX_CLOCK_SKEW_NS: u64 = 1_000_000_000;
/// The size of a buffer of records.
const BUFFER_BYTES: usize = 8 << 20;
/// The alignment of a buffer of records.
const ALIGNMENT: usize = 8;

/// The recorded data. Static, because the library's callbacks have no context.
static RECORDED: Mutex<Recorded> = Mutex::new(Recorded { functions: None, spans: Vec::new(), lost: 0 });

struct Recorded {
    /// The functions that iterate over the records of a buffer, and count dropped records.
    functions: Option<(GetNextRecordFn, GetDroppedRecordsFn)>,
    spans: Vec<KernelSpan>,
    /// Kernels without a record, because there was no buffer.
    lost: usize,
}

fn recorded() -> std::sync::MutexGuard<'static, Recorded> {
    RECORDED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn buffer_layout() -> Option<Layout> {
    Layout::from_size_align(BUFFER_BYTES, ALIGNMENT).ok()
}

unsafe extern "C" fn request(buffer: *mut *mut u8, size: *mut usize, records: *mut usize) {
    // SAFETY: the library passes valid out-pointers; the layout has a size.
    unsafe {
        let memory = buffer_layout().map_or(std::ptr::null_mut(), |layout| alloc(layout));
        *buffer = memory;
        *size = if memory.is_null() { 0 } else { BUFFER_BYTES };
        *records = 0;
    }
}

unsafe extern "C" fn complete(context: *mut c_void, stream: u32, buffer: *mut u8, _: usize, valid: usize) {
    let mut recorded = recorded();
    let mut record = std::ptr::null_mut();
    // SAFETY: the buffer is one of ours with `valid` bytes of records, over which the library iterates. Each
    // starts with its kind; that of a kernel has its times at the offsets above.
    unsafe {
        if let Some((next, dropped)) = recorded.functions {
            while !buffer.is_null() && next(buffer, valid, &raw mut record) == 0 {
                if record.cast::<u32>().read_unaligned() == KIND_CONCURRENT_KERNEL {
                    let number = |offset: usize| record.add(offset).cast::<u64>().read_unaligned();
                    recorded.spans.push(KernelSpan { start: number(START_OFFSET), end: number(END_OFFSET) });
                }
            }
            let mut lost = 0;
            if dropped(context, stream, &raw mut lost) == 0 {
                recorded.lost += lost;
            }
        }
        if let (false, Some(layout)) = (buffer.is_null(), buffer_layout()) {
            dealloc(buffer, layout);
        }
    }
}

/// The CUPTI library, opened once.
fn library() -> Result<&'static Library, String> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let open = || super::libraries::open(&["libcupti.so.13", "libcupti.so.12", "libcupti.so"]);
    LIBRARY.get_or_init(open).as_ref().ok_or_else(|| "cannot load CUPTI".to_owned())
}

/// The CUPTI library while it records.
struct Recording {
    library: &'static Library,
    /// The version, as `13.0`.
    version: String,
    /// The start, by the tool's clock.
    started_at: u64,
}

impl Recording {
    /// Starts recording.
    fn start(library: &'static Library) -> Result<Self, String> {
        let mut recording = Self { library, version: String::new(), started_at: 0 };
        let mut version = 0;
        // SAFETY: the functions have these types in every accepted version of the library; the callbacks are
        // functions of the program, which outlives their use.
        unsafe {
            check(recording.find::<GetVersionFn>(b"cuptiGetVersion\0")?(&raw mut version))?;
            recording.version = known_version(version)?;
            let next: GetNextRecordFn = *recording.find(b"cuptiActivityGetNextRecord\0")?;
            let dropped: GetDroppedRecordsFn = *recording.find(b"cuptiActivityGetNumDroppedRecords\0")?;
            *recorded() = Recorded { functions: Some((next, dropped)), spans: Vec::new(), lost: 0 };
            let register: RegisterCallbacksFn = *recording.find(b"cuptiActivityRegisterCallbacks\0")?;
            let enable: EnableFn = *recording.find(b"cuptiActivityEnable\0")?;
            check(register(request, complete))?;
            check(enable(KIND_CONCURRENT_KERNEL))?;
        }
        recording.started_at = recording.now()?;
        Ok(recording)
    }

    fn now(&self) -> Result<u64, String> {
        let mut now = 0;
        // SAFETY: the function has this type; the pointer is to a number.
        check(unsafe { self.find::<GetTimestampFn>(b"cuptiGetTimestamp\0")?(&raw mut now) })?;
        Ok(now)
    }

    /// The kernels that ended since the start, or since the last call.
    fn take(&self) -> Result<Vec<KernelSpan>, String> {
        // SAFETY: the function has this type; 1 also flushes buffers that are not full.
        unsafe { check(self.find::<EnableFn>(b"cuptiActivityFlushAll\0")?(1))? };
        let now = self.now()?;
        let (mut spans, lost) = {
            let mut recorded = recorded();
            (std::mem::take(&mut recorded.spans), std::mem::take(&mut recorded.lost))
        };
        if lost > 0 {
            return Err(format!("CUPTI {} lost the records of {lost} kernels", self.version));
        }
        let possible =
            self.started_at.saturating_sub(MAX_CLOCK_SKEW_NS)..=now.saturating_add(MAX_CLOCK_SKEW_NS);
        let is_possible = |span: &&KernelSpan| {
            span.start <= span.end && [span.start, span.end].iter().all(|time| possible.contains(time))
        };
        if let Some(span) = spans.iter().find(|span| !is_possible(span)) {
            return Err(format!(
                "CUPTI {} reported kernel times {} to {} ns, outside of the traced period ({} to {now} ns): \
                 timing failed, or the record layout is unknown",
                self.version, span.start, span.end, self.started_at
            ));
        }
        spans.sort_unstable_by_key(|span| span.start);
        Ok(spans)
    }

    /// # Safety
    /// The symbol must have the requested type.
    unsafe fn find<T>(&self, name: &[u8]) -> Result<libloading::Symbol<'static, T>, String> {
        // SAFETY: upheld by the caller.
        unsafe { self.library.get(name) }.map_err(|error| error.to_string())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // SAFETY: the functions have this type. Errors cannot be handled here. Data flushed here is not
        // returned later, while the process exits.
        unsafe {
            for (name, argument) in [
                (b"cuptiActivityDisable\0".as_slice(), KIND_CONCURRENT_KERNEL),
                (b"cuptiActivityFlushAll\0", 1),
            ] {
                if let Ok(function) = self.find::<EnableFn>(name) {
                    let _ = function(argument);
                }
            }
        }
    }
}

/// Formats a version as `13.0`, if its records are known.
fn known_version(version: u32) -> Result<String, String> {
    let text = match version {
        10_000.. => format!("{}.{}", version / 10_000, version / 100 % 100),
        _ => format!("with API {version}"),
    };
    if (MIN_API_VERSION..=MAX_API_VERSION).contains(&version) {
        return Ok(text);
    }
    Err(format!("unsupported CUPTI {text}: the record layout is known for CUDA 11.6 to 13 only"))
}

/// CUPTI while it records the work of a GPU.
pub(crate) struct Cupti {
    gpu: Arc<Gpu>,
    recording: Recording,
}

impl Cupti {
    /// Starts recording.
    pub fn start(gpu: &Arc<Gpu>) -> Result<Self, String> {
        gpu.make_current()?;
        Ok(Self { gpu: Arc::clone(gpu), recording: Recording::start(library()?)? })
    }
}

impl Tracer for Cupti {
    fn take(&mut self) -> Result<Vec<KernelSpan>, String> {
        self.gpu.wait()?;
        self.recording.take()
    }
}

impl Drop for Cupti {
    fn drop(&mut self) {
        // Work in progress is still recorded.
        let _ = self.gpu.wait();
    }
}

fn check(code: i32) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("CUPTI error {code}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A library with CUPTI's functions. It reports two kernels at each flush, 100 and 50 ns long, the later
    /// one first, in records of `RECORD` bytes with one of another kind between them.
    const FAKE: &str = r#"
        #include <cstddef>
        #include <cstdint>
        #include <cstring>
        static void (*request)(uint8_t **, size_t *, size_t *);
        static void (*complete)(void *, uint32_t, uint8_t *, size_t, size_t);
        static uint64_t now = 5000000000, records;
        static uint8_t *put(uint8_t *to, uint32_t kind, uint64_t start, uint64_t end) {
            memset(to, 0xff, RECORD);
            memcpy(to, &kind, 4);
            memcpy(to + 16, &start, 8);
            memcpy(to + 24, &end, 8);
            return to + RECORD;
        }
        extern "C" {
        int cuptiGetVersion(uint32_t *version) { *version = VERSION; return 0; }
        int cuptiGetTimestamp(uint64_t *time) { *time = now; return 0; }
        int cuptiActivityRegisterCallbacks(decltype(request) r, decltype(complete) c) {
            request = r, complete = c;
            return 0;
        }
        int cuptiActivityEnable(uint32_t kind) { records = 1; return kind != 10; }
        int cuptiActivityDisable(uint32_t kind) { records = 0; return kind != 10; }
        int cuptiActivityGetNumDroppedRecords(void *, uint32_t, size_t *n) { *n = LOST; return 0; }
        int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, uint8_t **record) {
            *record = *record ? *record + RECORD : buffer;
            return *record < buffer + valid ? 0 : 12;
        }
        int cuptiActivityFlushAll(uint32_t) {
            uint8_t *buffer;
            size_t size, most;
            if (!records) return 0;
            request(&buffer, &size, &most);
            if ((uintptr_t)buffer % 8 || size < 3 * RECORD) return 1;
            now += 1000;
            uint8_t *to = put(buffer, 10, now - 500, now - 400);
            to = put(to, 39, 1, 0);
            to = put(to, 10, now - 600, now - 550 + WRONG);
            complete(nullptr, 0, buffer, size, to - buffer);
            return 0;
        }
        }
    "#;

    /// Held while a fake library records, because the recorded data is static.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    fn fake(name: &str, definitions: &[&str]) -> &'static Library {
        let folder = std::env::current_exe().unwrap().with_file_name("fake-cupti");
        std::fs::create_dir_all(&folder).unwrap();
        let (code, path) = (folder.join(format!("{name}.cpp")), folder.join(format!("lib{name}.so")));
        std::fs::write(&code, FAKE).unwrap();
        let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
        let defaults = ["-DRECORD=208", "-DVERSION=130001", "-DLOST=0", "-DWRONG=0"];
        let is_given = |default: &str| {
            definitions.iter().any(|given| given.split('=').next() == default.split('=').next())
        };
        let mut command = Command::new(compiler);
        command.args(["-shared", "-fPIC"]).args(defaults.iter().filter(|default| !is_given(default)));
        command.args(definitions).arg(&code).arg("-o").arg(&path);
        assert!(command.status().unwrap().success());
        // SAFETY: the library was compiled from the text above, which has no initialisers.
        Box::leak(Box::new(unsafe { Library::new(&path) }.unwrap()))
    }

    /// Records of `CUpti_ActivityKernel9`, `…10` and `…13`, which differ in size.
    #[test]
    fn reads_kernel_records_of_every_size() {
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, record, version) in [("a", 208, 28), ("b", 216, 130_001), ("c", 256, 130_500)] {
            let definitions = [format!("-DRECORD={record}"), format!("-DVERSION={version}")];
            let definitions = definitions.each_ref().map(String::as_str);
            let library = fake(name, &definitions);
            for _ in 0..2 {
                let recording = Recording::start(library).unwrap();
                for _ in 0..2 {
                    let spans = recording.take().unwrap();
                    let lengths: Vec<u64> = spans.iter().map(|span| span.end - span.start).collect();
                    assert_eq!(lengths, [50, 100], "{name}");
                    assert!(spans[0].start < spans[1].start);
                }
            }
            assert!(recorded().spans.is_empty());
        }
    }

    #[test]
    fn refuses_unreadable_records() {
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let error = |name: &str, definition: &str| {
            let recording = Recording::start(fake(name, &[definition]));
            recording.and_then(|recording| recording.take()).unwrap_err()
        };
        assert!(error("newer", "-DVERSION=140000").contains("unsupported CUPTI 14.0"));
        assert!(error("older", "-DVERSION=12").contains("API 12"));
        assert!(error("lost", "-DLOST=3").contains("lost the records of 3 kernels"));
        assert!(error("late", "-DWRONG=2000000000").contains("13.0 reported kernel times"));
        assert!(error("backwards", "-DWRONG=-60").contains("outside of the traced period"));
    }
}
