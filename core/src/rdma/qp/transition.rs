//! The way from reset to ready to send.

use std::marker::PhantomData;

use rdma_core_sys::{
    ibv_ah_attr, ibv_gid, ibv_global_route, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask as mask,
    ibv_qp_state as state,
};

use super::bound::Bound;
use super::{Init, QueuePair, ReadyToReceive, ReadyToSend, Reset, State};
use crate::error::{Error, Result};
use crate::rdma::access::Access;
use crate::rdma::address::QpAddress;
use crate::rdma::choose::Port;
use crate::rdma::explain::{self, Asked};
use crate::rdma::gid::GidKind;
use crate::rdma::port::{LinkLayer, mtu_value};
use crate::rdma::settings::Settings;
use crate::rdma::status::failed;

impl QueuePair<Reset> {
    /// Binds it to `port` with `settings`, and allows the peer what is in `access` of remote write, read and atomics.
    ///
    /// # Errors
    /// `InvalidUsage` for settings out of range; otherwise the NIC's error, on `EINVAL` with the setting that is
    /// probably wrong.
    pub fn init(mut self, port: &Port, settings: &Settings, access: Access) -> Result<QueuePair<Init>> {
        settings.check()?;
        // Some NICs take any index and then send with another key.
        let keys = port.attributes.pkey_table_length;
        if settings.pkey_index >= keys {
            let (index, number) = (settings.pkey_index, port.attributes.number);
            let message = format!(
                "pkey_index {index} is outside the partition key table of port {number}: it has {keys} entries"
            );
            return Err(Error::usage("ibv_modify_qp", message));
        }
        self.inner.bound = Some(Bound { port: *port, settings: settings.clone(), peer: None });
        let mut attr = ibv_qp_attr {
            qp_state: state::IBV_QPS_INIT,
            pkey_index: settings.pkey_index,
            port_num: port.attributes.number,
            qp_access_flags: access.without(Access::RELAXED_ORDERING).bits(),
            ..Default::default()
        };
        let set =
            mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
        self.change(&mut attr, set)
    }
}

impl QueuePair<Init> {
    /// The address that the peer needs to connect to this queue pair.
    pub fn address(&self) -> QpAddress {
        let Bound { port, settings, .. } = self.bound();
        QpAddress {
            qp_number: self.number(),
            psn: self.inner.psn,
            lid: port.attributes.lid,
            gid: port.gid.map(|entry| (entry.gid, entry.kind)),
            mtu: self.own_mtu(),
            max_read_atomic: settings
                .max_read_atomic
                .min(self.domain().context().attributes().max_read_atomic_in),
        }
    }

    /// Connects it to `peer`: from now on it executes the peer's requests.
    ///
    /// # Errors
    /// `InvalidUsage` if the two ends cannot reach each other (InfiniBand and Ethernet, RoCE v1 and v2); otherwise
    /// the NIC's error, on `EINVAL` with the setting that is probably wrong.
    pub fn connect(mut self, peer: &QpAddress) -> Result<QueuePair<ReadyToReceive>> {
        let Bound { port, settings, .. } = self.bound().clone();
        let by_gid = port.attributes.link == LinkLayer::Ethernet
            || port.attributes.grh_required
            || peer.lid == 0
            // Another subnet prefix: behind a router.
            || different_subnets(&port, peer);
        self.check_reachable(&port, peer, by_gid)?;
        let mut attr = ibv_qp_attr {
            qp_state: state::IBV_QPS_RTR,
            path_mtu: mtu_value(self.own_mtu().min(peer.mtu)).unwrap_or(ibv_mtu::IBV_MTU_256),
            dest_qp_num: peer.qp_number,
            rq_psn: peer.psn,
            max_dest_rd_atomic: self.address().max_read_atomic,
            min_rnr_timer: settings.min_rnr_timer,
            ah_attr: ibv_ah_attr {
                dlid: peer.lid,
                sl: settings.service_level,
                port_num: port.attributes.number,
                is_global: by_gid.into(),
                grh: if by_gid { route(&port, &settings, peer) } else { ibv_global_route::default() },
                ..Default::default()
            },
            ..Default::default()
        };
        let set = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        if let Some(bound) = &mut self.inner.bound {
            bound.peer = Some(*peer);
        }
        self.change(&mut attr, set)
    }

    fn own_mtu(&self) -> u32 {
        let Bound { port, settings, .. } = self.bound();
        settings.mtu.unwrap_or(u32::MAX).min(port.attributes.active_mtu)
    }

    fn check_reachable(&self, port: &Port, peer: &QpAddress, by_gid: bool) -> Result<()> {
        const OP: &str = "QueuePair::connect";
        let kind = |gid: Option<GidKind>| gid.map_or("a LID only".to_owned(), |kind| kind.to_string());
        let (own, theirs) = (port.gid.map(|entry| entry.kind), peer.gid.map(|(_, kind)| kind));
        if by_gid && (own.is_none() || own != theirs) {
            let message = format!(
                "the ends have different kinds of addresses: {} here, {} at the peer; set gid_index so that both are the same",
                kind(own),
                kind(theirs)
            );
            return Err(Error::usage(OP, message));
        }
        Ok(())
    }
}

impl QueuePair<ReadyToReceive> {
    /// Makes it ready to send. The peer should be connected by then: packets that it does not acknowledge are sent
    /// again, `retry_count` times.
    ///
    /// # Errors
    /// The NIC's error, on `EINVAL` with the setting that is probably wrong.
    pub fn ready_to_send(self) -> Result<QueuePair<ReadyToSend>> {
        let settings = self.bound().settings.clone();
        let mut attr = ibv_qp_attr {
            qp_state: state::IBV_QPS_RTS,
            timeout: settings.timeout,
            retry_cnt: settings.retry_count,
            rnr_retry: settings.rnr_retry,
            sq_psn: self.inner.psn,
            max_rd_atomic: self.read_depth(),
            ..Default::default()
        };
        let set = mask::IBV_QP_STATE
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.change(&mut attr, set)
    }
}

impl QueuePair<ReadyToSend> {
    /// How many reads and atomics the NIC has outstanding at once, as both ends agreed: the least of this side's setting, of what
    /// its NIC can have outstanding, and of what the peer serves. Further ones wait in the queue. With 0, none can be posted.
    pub fn max_reads(&self) -> u8 {
        self.read_depth()
    }
}

impl<S: State> QueuePair<S> {
    fn read_depth(&self) -> u8 {
        let Bound { settings, peer, .. } = self.bound();
        let own = settings.max_read_atomic.min(self.domain().context().attributes().max_read_atomic_out);
        own.min(peer.map_or(0, |peer| peer.max_read_atomic))
    }

    fn bound(&self) -> &Bound {
        // Every public way to a state after Reset goes through `init`, which sets it.
        self.inner.bound.as_ref().expect("a queue pair is bound before it leaves the reset state")
    }

    fn change<T: State>(self, attr: &mut ibv_qp_attr, set: mask) -> Result<QueuePair<T>> {
        const OP: &str = "ibv_modify_qp";
        self.inner.domain.verbs().check(OP)?;
        match self.inner.modify(attr, set) {
            Ok(()) => Ok(QueuePair { inner: self.inner, state: PhantomData }),
            Err(errno) => {
                let context = self.domain().context();
                let Bound { port, settings, peer } = self.bound();
                let now = context.port(port.attributes.number).ok();
                let gids = context.gids(port.attributes.number).unwrap_or_default();
                let pkey = context.pkey(port.attributes.number, settings.pkey_index).ok();
                let asked =
                    Asked { attr, set, port, now: now.as_ref(), gids: &gids, pkey, peer: peer.as_ref() };
                let why = explain::modify(errno, &asked, context.attributes());
                let message = format!(
                    "queue pair {:#x} of device {} cannot become {}: {why}",
                    self.number(),
                    context.device().name(),
                    T::NAME
                );
                Err(failed(OP, errno, message))
            }
        }
    }
}

fn different_subnets(port: &Port, peer: &QpAddress) -> bool {
    match (port.gid, peer.gid) {
        (Some(own), Some((theirs, _))) => own.gid.0[..8] != theirs.0[..8],
        _ => false,
    }
}

fn route(port: &Port, settings: &Settings, peer: &QpAddress) -> ibv_global_route {
    ibv_global_route {
        dgid: ibv_gid { raw: peer.gid.map(|(gid, _)| gid.0).unwrap_or_default() },
        flow_label: 0,
        sgid_index: port.gid.map_or(0, |entry| u8::try_from(entry.index).unwrap_or(u8::MAX)),
        hop_limit: settings.hop_limit,
        traffic_class: settings.traffic_class,
    }
}
