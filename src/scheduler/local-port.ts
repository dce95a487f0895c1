/** The link inside one process: the messages go by function call (spec 2, The link). */
import type { AdmissionPort, AdmissionReceiver, DataplaneMessage } from "../wire/admission.ts";
import type { DataplaneSession, DataplaneSink } from "./service.ts";

/** A port whose other end is a session of the scheduler in the same process; always linked. */
export function createLocalPort(attach: (sink: DataplaneSink) => DataplaneSession): AdmissionPort {
  let session: DataplaneSession | undefined;
  return {
    inProcess: true,
    get linked() {
      return session !== undefined;
    },
    send(message: DataplaneMessage) {
      session?.receive(message);
    },
    attach(receiver: AdmissionReceiver) {
      session = attach({ send: (message) => receiver.onMessage(message) });
      receiver.onLinked();
    },
  };
}
