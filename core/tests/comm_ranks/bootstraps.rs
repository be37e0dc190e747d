//! Whatever a program has its bootstrap in, a reference to it makes a communicator.

use std::sync::Arc;

use aqueduct::bootstrap::{self, Bootstrap, Rendezvous, TcpBootstrap};
use aqueduct::comm::Communicator;

use crate::support::{config, context, driver, soon};

#[test]
fn a_reference_to_any_bootstrap_makes_a_communicator() {
    let context = &context(&driver(), 0);
    let alone = || bootstrap::local(1).remove(0);
    let check = |made: aqueduct::Result<Communicator>| assert_eq!(made.unwrap().size(), 1);

    check(Communicator::new(&alone(), context, config(), soon()));
    let shared: Arc<dyn Bootstrap> = Arc::new(alone());
    check(Communicator::new(&shared, context, config(), soon()));
    check(Communicator::new(&*shared, context, config(), soon()));
    let own: Box<dyn Bootstrap> = Box::new(alone());
    check(Communicator::new(&own, context, config(), soon()));
    let rendezvous = Rendezvous::start(Some(1)).unwrap();
    let tcp = Arc::new(TcpBootstrap::new(0, 1, rendezvous.unique_id(), soon()).unwrap());
    check(Communicator::new(&tcp, context, config(), soon()));
    check(Communicator::new(&*tcp, context, config(), soon()));
}
