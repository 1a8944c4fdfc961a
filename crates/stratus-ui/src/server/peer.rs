//! The user at the other end of a connection on this machine.
//!
//! Every user of a machine can connect to its loopback interface. Actions on runs are for the user of the
//! server only, as signals are, so the system is asked whose socket the connection comes from.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use stratus_run::owner::this_user;

/// The tables of sockets of the operating system.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// The state of a connection that neither side has closed. A socket that its process has closed is listed as
/// one of the superuser, whoever it was.
const ESTABLISHED: &str = "01";
/// The superuser, who may do anything anyway.
const SUPERUSER: u32 = 0;

/// Both ends of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The address of the server.
    pub own: SocketAddr,
    /// The address of the other end.
    pub peer: SocketAddr,
}

impl Peer {
    /// Returns whether the other end may act as the user of this server: a process of this user or of the
    /// superuser, or another machine, which needs a token.
    pub fn may_act(self) -> bool {
        let is_local = self.peer.ip().to_canonical().is_loopback();
        !is_local || self.is_process_of_this_user() || self.user() == Some(SUPERUSER)
    }

    /// Returns whether the other end is a process of the user of this server on this machine.
    pub fn is_process_of_this_user(self) -> bool {
        self.user() == Some(this_user())
    }

    /// Returns whether this system tells the users of connections.
    pub fn are_users_known() -> bool {
        TABLES.iter().any(|table| Path::new(table).exists())
    }

    /// The user of the other end; `None` if it is not on this machine.
    fn user(self) -> Option<u32> {
        TABLES.iter().find_map(|path| self.user_in(&fs::read_to_string(path).ok()?))
    }

    /// The user of the other end, in a table of sockets: `0: 0100007F:A1B2 0100007F:181E 01 … uid`.
    fn user_in(self, table: &str) -> Option<u32> {
        table.lines().skip(1).find_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (local, remote) = (address(words.next()?)?, address(words.next()?)?);
            let is_open = words.next()? == ESTABLISHED;
            let is_it = is_open && is_same(local, self.peer) && is_same(remote, self.own);
            is_it.then(|| words.nth(3)?.parse().ok())?
        })
    }
}

fn is_same(a: SocketAddr, b: SocketAddr) -> bool {
    (a.ip().to_canonical(), a.port()) == (b.ip().to_canonical(), b.port())
}

/// An address of the table: words of 32 bits in hexadecimal digits, in the byte order of the machine.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(ip.get(8 * at..8 * at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(words.as_flattened()).ok()?))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn connections_of_this_process_are_of_this_user() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may have no IPv6.
            let Ok(listener) = TcpListener::bind(host) else { continue };
            let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, peer) = listener.accept().unwrap();
            let ends = Peer { own: server.local_addr().unwrap(), peer };
            assert!(ends.is_process_of_this_user() && ends.may_act(), "{ends:?}");
            let stranger = Peer { peer: SocketAddr::new(peer.ip(), peer.port() ^ 1), ..ends };
            assert!(!stranger.is_process_of_this_user() && !stranger.may_act(), "no such connection");
        }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn the_user_is_that_of_the_other_end() {
        let socket_in = |state, local, remote, user: u32| {
            format!("   0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000  {user} 0 1\n")
        };
        let socket = |local, remote, user| socket_in("01", local, remote, user);
        let (server, client) = ("0100007F:181E", "0100007F:A1B2");
        let table = "  sl  local_address rem_address   st …  uid\n".to_owned()
            + &socket(server, client, 1000)
            + &socket(client, server, 1001)
            + " half\n";
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let ends = Peer { own: at("127.0.0.1:6174"), peer: at("127.0.0.1:41394") };
        assert_eq!(ends.user_in(&table), Some(1001));
        assert_eq!(Peer { own: at("127.0.0.1:6175"), ..ends }.user_in(&table), None);
        // Its process has closed it: the system no longer tells whose it was.
        for state in ["04", "05", "06", "08"] {
            let closed = "header\n".to_owned() + &socket_in(state, client, server, 0);
            assert_eq!(ends.user_in(&closed), None, "{state}");
        }
        let mapped = Peer { own: at("[::ffff:127.0.0.1]:6174"), peer: at("[::ffff:127.0.0.1]:41394") };
        assert_eq!(mapped.user_in(&table), Some(1001));
        assert_eq!(address("00000000000000000000000001000000:181E"), Some(at("[::1]:6174")));
        for text in ["", "0100007F", "0100007F:x", "0100007:181E", "xxxxxxxx:181E"] {
            assert_eq!(address(text), None, "{text}");
        }
    }
}
