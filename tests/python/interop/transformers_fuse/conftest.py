import sys, types
import decoder_oracle
sys.modules.setdefault("qcore.decoder", decoder_oracle)
import qcore
qcore.decoder = decoder_oracle
