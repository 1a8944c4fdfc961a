//! NCCL: communication between GPUs over NVLink, PCIe and the network.
//!
//! Source: nccl.h. The functions below have not changed since version 2.14.

use super::driver::{DeviceMemory, Gpu, check};
use super::libraries;
use crate::exchange::{DeviceRange, Group};
use cudarc::driver::sys::{self, CUstream};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::mpsc::{Receiver, SendError, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::time::Duration;
use stratus_engine::DType;
use stratus_engine::exchange::{DeviceGroup, GROUP_ID_BYTES};

/// `ncclComm_t`.
type Handle = *mut c_void;
/// `ncclResult_t`.
type Outcome = c_int;

/// `ncclSuccess`.
const SUCCESS: Outcome = 0;
/// `ncclInProgress`.
const IN_PROGRESS: Outcome = 7;
/// `ncclUint8`.
const UINT8: c_int = 1;
/// `ncclFloat32`.
const FLOAT32: c_int = 7;
/// `ncclFloat64`.
const FLOAT64: c_int = 8;
/// `ncclBfloat16`.
const BFLOAT16: c_int = 9;
/// `ncclSum`.
const SUM: c_int = 0;

/// `ncclUniqueId`, which is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId {
    internal: [u8; GROUP_ID_BYTES],
}

type PointToPointFn<P> = unsafe extern "C" fn(P, usize, c_int, c_int, Handle, CUstream) -> Outcome;
type AllReduceFn =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, CUstream) -> Outcome;

/// The functions of the library.
struct Nccl {
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> Outcome,
    comm_init_rank: unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int) -> Outcome,
    comm_abort: unsafe extern "C" fn(Handle) -> Outcome,
    comm_get_async_error: unsafe extern "C" fn(Handle, *mut Outcome) -> Outcome,
    get_error_string: unsafe extern "C" fn(Outcome) -> *const c_char,
    get_last_error: unsafe extern "C" fn(Handle) -> *const c_char,
    all_reduce: AllReduceFn,
    send: PointToPointFn<*const c_void>,
    receive: PointToPointFn<*mut c_void>,
    group_start: unsafe extern "C" fn() -> Outcome,
    group_end: unsafe extern "C" fn() -> Outcome,
    /// Such as `23203` for 2.32.3.
    version: c_int,
    /// Keeps the functions loaded.
    _library: Library,
}

/// The library, loaded once.
///
/// # Errors
/// If it is not found, or lacks a function.
fn library() -> Result<&'static Nccl, String> {
    static LIBRARY: OnceLock<Result<Nccl, String>> = OnceLock::new();
    LIBRARY.get_or_init(Nccl::load).as_ref().map_err(Clone::clone)
}

/// The version of the library, such as `2.27.5`.
///
/// # Errors
/// Those of loading it.
pub fn version() -> Result<String, String> {
    library().map(|nccl| version_text(nccl.version))
}

/// A version by its number: `major * 10000 + minor * 100 + patch` from 2.9 on, and before with a factor of
/// 1000.
fn version_text(number: c_int) -> String {
    let (major, rest) = if number < 10_000 { (1000, number % 1000) } else { (10_000, number % 10_000) };
    format!("{}.{}.{}", number / major, rest / 100, rest % 100)
}

/// The oldest version that is used: from 2.14 on the functions below are in it, and messages may be recorded
/// in CUDA graphs.
const MIN_VERSION: [u32; 2] = [2, 14];

/// Checks that a version is new enough.
///
/// # Errors
/// If it is not, or is no version.
pub(crate) fn check_version(version: &str) -> Result<(), String> {
    let mut numbers = version.split('.').map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Err(format!("NCCL has the unknown version `{}`", version.escape_default()));
    };
    if [major, minor] < MIN_VERSION {
        let [major, minor] = MIN_VERSION;
        return Err(format!("NCCL {version} is too old, {major}.{minor} is needed"));
    }
    Ok(())
}

/// Checks that the library can use a GPU: a group of this GPU alone sends a message to itself. Whether its
/// CUDA fits the driver, and whether it has kernels for the GPU, is not known otherwise.
///
/// # Errors
/// The error message of NCCL or the driver.
pub(crate) fn check_gpu(gpu: &Arc<Gpu>) -> Result<(), String> {
    const BYTES: usize = 256;
    let group = NcclGroup::join(gpu, &DeviceGroup { id: new_id()?, rank: 0, size: 1 })?;
    let (sent, received) = (DeviceMemory::filled(gpu, BYTES, 0x5a)?, DeviceMemory::zeroed(gpu, BYTES)?);
    let range = |memory: &DeviceMemory| DeviceRange { address: memory.address(), bytes: BYTES };
    let exchanged = group.send_receive(gpu.stream(), 0, range(&sent), range(&received));
    exchanged.and_then(|()| gpu.wait()).and_then(|()| {
        let mut bytes = [0; BYTES];
        received.read(received.address(), &mut bytes)?;
        if bytes == [0x5a; BYTES] { Ok(()) } else { Err("a message arrived with other bytes".to_owned()) }
    })
}

/// The identity of a new group.
///
/// # Errors
/// NCCL's error message.
pub(crate) fn new_id() -> Result<Vec<u8>, String> {
    let nccl = library()?;
    let mut id = UniqueId { internal: [0; GROUP_ID_BYTES] };
    // SAFETY: the pointer is to an identity.
    let outcome = unsafe { (nccl.get_unique_id)(&raw mut id) };
    nccl.check("ncclGetUniqueId", outcome)?;
    Ok(id.internal.to_vec())
}

impl Nccl {
    fn load() -> Result<Self, String> {
        let library = libraries::open(&["libnccl.so.2"]).ok_or_else(|| NOT_FOUND.to_owned())?;
        // SAFETY: each function has the type of its field in every version that has it.
        let found = unsafe {
            let get_version: unsafe extern "C" fn(*mut c_int) -> Outcome =
                symbol(&library, "ncclGetVersion\0")?;
            let mut version = 0;
            if get_version(&raw mut version) != SUCCESS {
                return Err("ncclGetVersion failed".to_owned());
            }
            check_version(&version_text(version))?;
            Self {
                get_unique_id: symbol(&library, "ncclGetUniqueId\0")?,
                comm_init_rank: symbol(&library, "ncclCommInitRank\0")?,
                comm_abort: symbol(&library, "ncclCommAbort\0")?,
                comm_get_async_error: symbol(&library, "ncclCommGetAsyncError\0")?,
                get_error_string: symbol(&library, "ncclGetErrorString\0")?,
                get_last_error: symbol(&library, "ncclGetLastError\0")?,
                all_reduce: symbol(&library, "ncclAllReduce\0")?,
                send: symbol(&library, "ncclSend\0")?,
                receive: symbol(&library, "ncclRecv\0")?,
                group_start: symbol(&library, "ncclGroupStart\0")?,
                group_end: symbol(&library, "ncclGroupEnd\0")?,
                version,
                _library: library,
            }
        };
        Ok(found)
    }

    /// The error of a call, with the details that the library has of its last one.
    fn check(&self, call: &str, outcome: Outcome) -> Result<(), String> {
        if outcome == SUCCESS {
            return Ok(());
        }
        // SAFETY: the library returns texts that live as long as it is loaded, or null.
        let texts = unsafe { [(self.get_error_string)(outcome), (self.get_last_error)(ptr::null_mut())] };
        let texts = texts.into_iter().filter(|text| !text.is_null()).map(|text| {
            // SAFETY: as above; the texts end with a zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned()
        });
        let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
        Err(format!("{call} failed: {}", texts.join(": ")))
    }
}

impl DeviceRange {
    /// The address as the library takes it.
    fn pointer(self) -> *mut c_void {
        ptr::with_exposed_provenance_mut(self.address as usize)
    }
}

/// A function of the library.
///
/// # Safety
/// It must have type `T`.
unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> Result<T, String> {
    // SAFETY: as the caller promises.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found.map(|found| *found).map_err(|_| format!("NCCL lacks the function {}", name.trim_end_matches('\0')))
}

/// The reason if the library is missing.
const NOT_FOUND: &str = "NCCL was not found";

/// The membership of a GPU in a group.
pub(crate) struct NcclGroup {
    nccl: &'static Nccl,
    gpu: Arc<Gpu>,
    state: Mutex<State>,
}

struct State {
    /// Null after an error.
    communicator: Handle,
    failure: Option<String>,
    /// Closed when the communicator has been aborted.
    ended: Option<Receiver<()>>,
}

/// A communicator on its way to the thread that uses it.
struct Communicator(Handle);

// SAFETY: a communicator may be used from every thread, one at a time.
unsafe impl Send for Communicator {}

// SAFETY: a communicator may be used from every thread, one at a time: the mutex guards it.
unsafe impl Send for NcclGroup {}
// SAFETY: as above.
unsafe impl Sync for NcclGroup {}

/// The time in which all GPUs of a group must join.
const JOIN_TIMEOUT: Duration = Duration::from_secs(120);

/// The time in which a communicator must end.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Creates the communicator of a member, and connects it with those that it exchanges messages with. The
/// library waits for all other members without a limit, so a thread of its own calls it.
///
/// # Errors
/// NCCL's error message, or after [`JOIN_TIMEOUT`].
fn init(
    nccl: &'static Nccl,
    gpu: &Arc<Gpu>,
    [size, rank]: [c_int; 2],
    id: UniqueId,
) -> Result<Communicator, String> {
    let (sender, joined) = channel();
    let gpu = Arc::clone(gpu);
    let init = move || {
        // The library uses the current context.
        let outcome = gpu.make_current().and_then(|()| {
            // It is freed after the communicator was aborted, which ends messages that use it.
            let first = FirstMessages::new(&gpu, [size, rank])?;
            let mut communicator = ptr::null_mut();
            // SAFETY: the pointer is to a handle; the identity is passed by value.
            let outcome = unsafe { (nccl.comm_init_rank)(&raw mut communicator, size, id, rank) };
            nccl.check("ncclCommInitRank", outcome)?;
            first.exchange(nccl, communicator).map(|()| Communicator(communicator)).inspect_err(|_| {
                // SAFETY: the communicator lives, and nothing else uses it. Errors cannot be handled here.
                let _ = unsafe { (nccl.comm_abort)(communicator) };
            })
        });
        if let Err(SendError(Ok(Communicator(late)))) = sender.send(outcome) {
            // SAFETY: the communicator lives, and nothing else uses it. Errors cannot be handled here.
            let _ = unsafe { (nccl.comm_abort)(late) };
        }
    };
    let started = std::thread::Builder::new().name("join".to_owned()).spawn(init);
    started.map_err(|error| error.to_string())?;
    joined.recv_timeout(JOIN_TIMEOUT).unwrap_or_else(|_| {
        Err(format!(
            "the GPUs of a group did not find each other within {} s; NCCL_SOCKET_IFNAME names the network \
             interface for NCCL",
            JOIN_TIMEOUT.as_secs()
        ))
    })
}

/// A few bytes for each member that sums along the tree exchange messages with. The library connects two
/// members only when they exchange their first message, and waits for the other without a limit: in a
/// training that has lost a worker, the call would never return.
struct FirstMessages {
    gpu: Arc<Gpu>,
    /// Not that of the kernels, which must not wait if the members do not find each other.
    stream: CUstream,
    memory: DeviceMemory,
    peers: Vec<c_int>,
}

impl FirstMessages {
    /// The bytes of a message.
    const BYTES: usize = 256;

    /// Allocates the memory of the messages.
    ///
    /// # Errors
    /// The driver's error message.
    fn new(gpu: &Arc<Gpu>, [size, rank]: [c_int; 2]) -> Result<Self, String> {
        // As `Halving`: a power of two of members, each with one peer per level of the tree.
        let distances = (0..).map(|round| 1 << round).take_while(|distance: &c_int| *distance < size);
        let peers: Vec<c_int> = distances.map(|distance| rank ^ distance).collect();
        let memory = DeviceMemory::zeroed(gpu, 2 * Self::BYTES * peers.len().max(1))?;
        let mut first = Self { gpu: Arc::clone(gpu), stream: ptr::null_mut(), memory, peers };
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current; the pointer is to a stream.
        check("cannot create a stream", unsafe { sys::cuStreamCreate(&raw mut first.stream, flags) })?;
        Ok(first)
    }

    /// Exchanges the messages, and sums a number over all members.
    ///
    /// # Errors
    /// The error message of NCCL or the driver.
    fn exchange(&self, nccl: &Nccl, communicator: Handle) -> Result<(), String> {
        if self.peers.is_empty() {
            return Ok(());
        }
        let range = |slot: usize| DeviceRange {
            address: self.memory.address() + (slot * Self::BYTES) as u64,
            bytes: Self::BYTES,
        };
        let messages = (0..).zip(&self.peers);
        let messages =
            messages.map(|(at, &peer)| Message { peer, send: range(2 * at), receive: range(2 * at + 1) });
        exchange(nccl, communicator, self.stream, &messages.collect::<Vec<_>>())?;
        let number = range(0).pointer();
        // SAFETY: the communicator and the stream live; the number is device memory that is kept until the
        // stream is empty, or its work has been aborted.
        nccl.check("ncclAllReduce", unsafe {
            (nccl.all_reduce)(number, number, 1, FLOAT32, SUM, communicator, self.stream)
        })?;
        // SAFETY: the stream lives.
        check("the GPU failed", unsafe { sys::cuStreamSynchronize(self.stream) })
    }
}

impl Drop for FirstMessages {
    fn drop(&mut self) {
        if !self.stream.is_null() && self.gpu.make_current().is_ok() {
            // SAFETY: created and destroyed once. Errors cannot be handled here.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.stream) };
        }
    }
}

/// Bytes to send to another member, and memory for those that it sends at the same time.
struct Message {
    peer: c_int,
    send: DeviceRange,
    receive: DeviceRange,
}

/// Enqueues messages that travel at the same time.
///
/// # Errors
/// NCCL's error message.
fn exchange(nccl: &Nccl, communicator: Handle, stream: CUstream, messages: &[Message]) -> Result<(), String> {
    // SAFETY: the group is ended below, by the same thread.
    nccl.check("ncclGroupStart", unsafe { (nccl.group_start)() })?;
    let enqueue = |&Message { peer, send, receive }: &Message| {
        if send.bytes > 0 {
            // SAFETY: the communicator and the stream live; the range is device memory of this process, which
            // is kept until the stream is empty.
            nccl.check("ncclSend", unsafe {
                (nccl.send)(send.pointer(), send.bytes, UINT8, peer, communicator, stream)
            })?;
        }
        if receive.bytes > 0 {
            // SAFETY: as above; nothing else uses the range until later work of the stream.
            nccl.check("ncclRecv", unsafe {
                (nccl.receive)(receive.pointer(), receive.bytes, UINT8, peer, communicator, stream)
            })?;
        }
        Ok(())
    };
    let outcome = messages.iter().try_for_each(enqueue);
    // SAFETY: the group was started above.
    let ended = nccl.check("ncclGroupEnd", unsafe { (nccl.group_end)() });
    outcome.and(ended)
}

impl NcclGroup {
    /// Joins a group; returns when all its members have joined.
    ///
    /// # Errors
    /// NCCL's error message.
    pub fn join(gpu: &Arc<Gpu>, group: &DeviceGroup) -> Result<Self, String> {
        let nccl = library()?;
        let internal = <[u8; GROUP_ID_BYTES]>::try_from(group.id.as_slice())
            .map_err(|_| "the identity of the group has another length".to_owned())?;
        let number = |number: usize| c_int::try_from(number).map_err(|error| error.to_string());
        let (size, rank) = (number(group.size)?, number(group.rank)?);
        let Communicator(communicator) = init(nccl, gpu, [size, rank], UniqueId { internal })?;
        let state = Mutex::new(State { communicator, failure: None, ended: None });
        Ok(Self { nccl, gpu: Arc::clone(gpu), state })
    }

    /// Enqueues an exchange with another member: sends and receives bytes at the same time.
    ///
    /// # Errors
    /// NCCL's error message.
    pub fn send_receive(
        &self,
        stream: CUstream,
        peer: usize,
        send: DeviceRange,
        receive: DeviceRange,
    ) -> Result<(), String> {
        let peer = c_int::try_from(peer).map_err(|error| error.to_string())?;
        self.with_communicator(|nccl, communicator| {
            exchange(nccl, communicator, stream, &[Message { peer, send, receive }])
        })
    }

    /// Enqueues the sum of values over all members, in place, in an order that the library chooses.
    ///
    /// # Errors
    /// NCCL's error message, or for another type.
    pub fn all_reduce(&self, stream: CUstream, values: DeviceRange, dtype: DType) -> Result<(), String> {
        let kind = match dtype {
            DType::F32 => FLOAT32,
            DType::F64 => FLOAT64,
            DType::Bf16 => BFLOAT16,
            other => return Err(format!("{other} values are not summed")),
        };
        let count = values.bytes / dtype.bytes();
        self.with_communicator(|nccl, communicator| {
            let pointer = values.pointer();
            // SAFETY: as for `send_receive`; sums may replace the values.
            nccl.check("ncclAllReduce", unsafe {
                (nccl.all_reduce)(pointer, pointer, count, kind, SUM, communicator, stream)
            })
        })
    }

    fn with_communicator(
        &self,
        enqueue: impl FnOnce(&Nccl, Handle) -> Result<(), String>,
    ) -> Result<(), String> {
        self.gpu.make_current()?;
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &state.failure {
            Some(reason) => Err(reason.clone()),
            None => enqueue(self.nccl, state.communicator),
        }
    }

    /// Ends the communicator with all that it still does in streams, and frees it, without other members. The
    /// library waits for the end of all recorded graphs that use it, so a thread of its own calls it. The
    /// channel is closed when it has ended.
    fn abort(&self, state: &mut State) {
        let communicator = std::mem::replace(&mut state.communicator, ptr::null_mut());
        if communicator.is_null() {
            return;
        }
        let (nccl, gpu, aborted) = (self.nccl, Arc::clone(&self.gpu), Communicator(communicator));
        let (ending, ended) = channel::<()>();
        let abort = move || {
            let Communicator(communicator) = { aborted };
            if gpu.make_current().is_ok() {
                // SAFETY: the communicator lives, and is not used again. Errors cannot be handled here.
                let _ = unsafe { (nccl.comm_abort)(communicator) };
            }
            drop(ending);
        };
        if std::thread::Builder::new().name("abort".to_owned()).spawn(abort).is_ok() {
            state.ended = Some(ended);
        }
    }
}

impl Group for NcclGroup {
    fn check(&self) -> Result<(), String> {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // It is in use; the next check is soon.
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        if let Some(reason) = &state.failure {
            return Err(reason.clone());
        }
        let mut found = SUCCESS;
        // SAFETY: the communicator lives, since there was no error; the pointer is to an outcome.
        let asked = unsafe { (self.nccl.comm_get_async_error)(state.communicator, &raw mut found) };
        self.nccl.check("ncclCommGetAsyncError", asked)?;
        let found = if found == IN_PROGRESS { SUCCESS } else { found };
        self.nccl.check("the exchange by NCCL", found)
    }

    fn fail(&self, reason: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.failure.get_or_insert_with(|| reason.to_owned());
        self.abort(&mut state);
    }
}

impl Drop for NcclGroup {
    fn drop(&mut self) {
        // The state is moved out, since it is changed through the group.
        let empty = State { communicator: ptr::null_mut(), failure: None, ended: None };
        let mut state =
            std::mem::replace(self.state.get_mut().unwrap_or_else(PoisonError::into_inner), empty);
        // Workers exchange values after the last sum, so that none still waits for this one.
        self.abort(&mut state);
        if let Some(ended) = state.ended {
            // After an error of the GPU, recorded graphs cannot be freed, and the library waits for ever.
            let _ = ended.recv_timeout(ABORT_TIMEOUT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{NOT_FOUND, check_version, new_id, version, version_text};
    use stratus_engine::exchange::GROUP_ID_BYTES;

    /// Neither needs a GPU.
    #[test]
    fn library_has_its_functions_and_makes_identities() {
        match version() {
            Ok(version) => {
                assert!(check_version(&version).is_ok(), "{version}");
                let ids = [new_id().unwrap(), new_id().unwrap()];
                assert!(ids[0].len() == GROUP_ID_BYTES && ids[0] != ids[1], "{ids:?}");
            }
            Err(reason) => {
                assert_eq!(reason, NOT_FOUND);
                eprintln!("SKIPPED: {reason}");
            }
        }
    }

    #[test]
    fn old_and_unknown_versions_are_refused() {
        assert!(check_version("2.14.3").is_ok() && check_version("3.0").is_ok());
        let old = check_version("2.7.8").unwrap_err();
        assert_eq!(old, "NCCL 2.7.8 is too old, 2.14 is needed");
        for version in ["", "2", "two.14", "2.\u{1b}[2J", "99999999999.1"] {
            let unknown = check_version(version).unwrap_err();
            assert!(unknown.contains("unknown version") && !unknown.contains('\u{1b}'), "{unknown}");
        }
    }

    #[test]
    fn versions_are_read_in_both_forms() {
        assert_eq!(version_text(23_203), "2.32.3");
        assert_eq!(version_text(21_403), "2.14.3");
        assert_eq!(version_text(2_708), "2.7.8");
    }
}
