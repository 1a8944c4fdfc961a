//! The listener, its limits, and the thread that scans the folders.

mod guard;
mod peer;
mod post;
mod query;

pub(crate) use query::QueryPairs;

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::{Extension, Router, middleware};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use stratus_base::Secret;
use stratus_base::secret::RANDOM_SOURCE;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::actions::Actions;
use crate::api::{self, Site};
use crate::{Error, Forecaster, Index, Result};
use guard::Guard;
use peer::Peer;

/// A token that requests need.
fn new_token() -> Result<Secret> {
    Secret::random().map_err(|source| Error::Random { path: RANDOM_SOURCE, source })
}

/// The port, if none is given. It differs from those of other tools.
pub const DEFAULT_PORT: u16 = 6174;

/// Number of ports that are tried, from the given one on.
const MAX_PORTS: u16 = 20;
/// Maximum number of connections at the same time.
const MAX_CONNECTIONS: usize = 256;
/// Maximum bytes of the head of a request.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Maximum number of header fields of a request.
const MAX_HEADER_FIELDS: usize = 64;
/// Maximum time for receiving the head of a request, also for the next one on the same connection.
const MAX_HEAD_TIME: Duration = Duration::from_secs(30);
/// Time between scans, or as long as the last scan took.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Time between checks of the flag that stops the server.
const STOP_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time for requests in progress when the server stops.
const MAX_STOP_TIME: Duration = Duration::from_secs(1);

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folders with runs, or runs.
    pub folders: Vec<PathBuf>,
    /// The name or address of the interface.
    pub host: String,
    /// The port; the next free one is used if it is in use, any free one if it is 0.
    pub port: u16,
    /// The program that stops launches and continues runs, `stratus`; without it, the server offers no
    /// actions on runs.
    pub program: Option<PathBuf>,
    /// True if a browser of this user on this machine is opened: it needs no token, which other users could
    /// read among its arguments.
    pub opens_browser: bool,
}

/// A server that listens.
pub struct Server {
    listener: std::net::TcpListener,
    address: SocketAddr,
    url: String,
    guard: Guard,
    index: Arc<Index>,
    forecaster: Option<Arc<dyn Forecaster>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Server {
    /// Listens. Nothing is read or served yet.
    ///
    /// # Errors
    /// If the host is unknown, or no port is free.
    pub fn bind(options: &Options) -> Result<Self> {
        let ip = resolve(&options.host)?;
        let listener = listen(ip, options.port)?;
        let address = listener.local_addr().map_err(Error::Start)?;
        let token = if ip.is_loopback() { None } else { Some(new_token()?) };
        let page_token = if options.program.is_some() { Some(new_token()?) } else { None };
        let guard = Guard::new(&options.host, address, token, page_token, options.opens_browser);
        let url = guard.url();
        let actions = Arc::new(Actions::new(options.program.clone()));
        let index = Arc::new(Index::with_actions(options.folders.clone(), actions));
        Ok(Self { listener, address, url, guard, index, forecaster: None })
    }

    /// Computes the forecasts of the page of forecasts by `forecaster`; without one, it says that there are
    /// none.
    #[must_use]
    pub fn with_forecaster(mut self, forecaster: Arc<dyn Forecaster>) -> Self {
        self.forecaster = Some(forecaster);
        self
    }

    /// The address for a browser, with the token if there is one.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The address for a browser of this user on this machine, without a token.
    ///
    /// It is only of use with [`Options::opens_browser`].
    #[must_use]
    pub fn local_url(&self) -> String {
        self.guard.local_url()
    }

    /// The address and the port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The index of the runs.
    #[must_use]
    pub fn index(&self) -> &Arc<Index> {
        &self.index
    }

    /// Serves until `stop` is set.
    ///
    /// # Errors
    /// If the system provides no thread or no event queue.
    pub fn serve(self, stop: &AtomicBool) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(5)
            .build()
            .map_err(Error::Start)?;
        let is_done = AtomicBool::new(false);
        let served = std::thread::scope(|threads| {
            let scan = || scan_until(&self.index, &is_done);
            let scanner = std::thread::Builder::new().name("scan".into()).spawn_scoped(threads, scan);
            let scanner = scanner.map_err(Error::Start)?;
            let site = Site::new(Arc::clone(&self.index), self.forecaster, self.guard.page_token());
            // The guard comes first: no request reaches a route without it.
            let guard = middleware::from_fn_with_state(Arc::new(self.guard), guard::check);
            let router = api::router(site).layer(guard);
            self.listener.set_nonblocking(true).map_err(Error::Start)?;
            let served = runtime.block_on(accept(self.listener, router, stop));
            is_done.store(true, Ordering::Relaxed);
            scanner.thread().unpark();
            served
        });
        runtime.shutdown_timeout(MAX_STOP_TIME);
        served
    }
}

/// Scans the folders again and again. A scan that takes long is followed by a rest of the same length.
fn scan_until(index: &Index, is_done: &AtomicBool) {
    while !is_done.load(Ordering::Relaxed) {
        let start = Instant::now();
        index.scan();
        std::thread::park_timeout(SCAN_INTERVAL.max(start.elapsed()));
    }
}

/// Accepts connections until `stop` is set.
async fn accept(listener: std::net::TcpListener, router: Router, stop: &AtomicBool) -> Result<()> {
    let listener = TcpListener::from_std(listener).map_err(Error::Start)?;
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    while !stop.load(Ordering::Relaxed) {
        let accepted = async {
            let permit = Arc::clone(&connections).acquire_owned().await;
            (listener.accept().await, permit)
        };
        let Ok((accepted, permit)) = tokio::time::timeout(STOP_INTERVAL, accepted).await else { continue };
        let Ok((stream, peer)) = accepted else {
            // Out of file descriptors, for example: others may be closed meanwhile.
            tokio::time::sleep(STOP_INTERVAL).await;
            continue;
        };
        let peer = stream.local_addr().map(|own| Peer { own, peer });
        let router = router.clone().layer(Extension(peer.ok()));
        let connection = serve_connection(stream, router);
        tokio::spawn(async move {
            connection.await;
            drop(permit);
        });
    }
    Ok(())
}

async fn serve_connection(stream: TcpStream, router: Router) {
    // Small events are sent at once.
    let _ = stream.set_nodelay(true);
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(MAX_HEAD_TIME)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADER_FIELDS);
    // A connection that the other side breaks off is not an error of the server.
    let _ = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await;
}

/// The address of a host; the one of version 4, if it has both.
fn resolve(host: &str) -> Result<IpAddr> {
    let name = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = name.parse() {
        return Ok(ip);
    }
    if name.eq_ignore_ascii_case("localhost") {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    let failed = |source| Error::Host { host: host.to_owned(), source };
    let addresses: Vec<IpAddr> =
        (name, 0).to_socket_addrs().map_err(failed)?.map(|address| address.ip()).collect();
    let chosen = addresses.iter().find(|ip| ip.is_ipv4()).or(addresses.first());
    chosen.copied().ok_or_else(|| failed(io::Error::other("it has no addresses")))
}

/// Listens on the first free port from `port` on.
fn listen(ip: IpAddr, port: u16) -> Result<std::net::TcpListener> {
    let failed = |source: io::Error| {
        let address = SocketAddr::new(ip, port).to_string();
        Error::Listen { address, source }
    };
    let mut first_error = None;
    for port in (port..=u16::MAX).take(usize::from(MAX_PORTS)) {
        match std::net::TcpListener::bind(SocketAddr::new(ip, port)) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == ErrorKind::AddrInUse => _ = first_error.get_or_insert(error),
            Err(error) => return Err(failed(error)),
        }
    }
    Err(failed(first_error.unwrap_or_else(|| io::Error::other("no port was tried"))))
}
